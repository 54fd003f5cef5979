"""Settings of UNREAL."""

from __future__ import annotations

from dataclasses import dataclass

from apex_acer.algorithms.on_policy.settings import PolicyGradientConfig
from apex_acer.config import Sampling, at_least, require

LOSSES = "pixel_control", "reward_prediction", "value_replay"  # the weights of the auxiliary losses


@dataclass(frozen=True)
class UnrealConfig(PolicyGradientConfig):
    """UNREAL (arXiv 1611.05397): actor-critic on fresh sequences, auxiliary losses on replayed ones."""

    actions = "Discrete"
    has_replay = True
    shares_updates = False
    pixels_key = "pixel_control"

    name: str = "unreal"
    replay_ratio: float = 1.0
    """Replayed steps per fresh step, on which the auxiliary losses are computed; 0: only if all their weights are 0."""
    gae_lambda: float = 1.0
    """λ of generalised advantage estimation, and of the targets of value replay; 1: n-step returns."""
    pixel_control: float = 0.05
    """Weight of pixel control, the Q losses ½ (target − Q)² summed over cells of the image; 0: none, as for vectors."""
    reward_prediction: float = 1.0
    """Weight of reward prediction, the cross-entropy of the next reward's sign given the newest three observations; 0:
    none."""
    value_replay: float = 1.0
    """Weight of value replay, the critic's loss ½ (target − V)² on replayed sequences; 0: none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, "algorithm", self, *LOSSES)
        is_on = any(getattr(self, name) for name in LOSSES)
        weights = ", ".join(f"algorithm.{name}" for name in LOSSES)
        allowed = f"give more than 0 if one of {weights} is, else 0"
        require(is_on == (self.replay_ratio > 0), "algorithm.replay_ratio", self.replay_ratio, allowed)

    @property
    def sampling(self) -> Sampling:
        """Each sequence once as it arrives, and replayed ones."""
        return Sampling(fresh=True)
