"""Settings of soft actor-critic."""

from __future__ import annotations

from dataclasses import dataclass

from apex_acer.config import ContinuousConfig, at_least, fraction, positive


@dataclass(frozen=True)
class SacConfig(ContinuousConfig):
    """Soft actor-critic (arXiv 1812.05905), for continuous actions."""

    name: str = "sac"
    num_critics: int = 2
    """Number of critics, of which the smallest estimate is used."""
    ema_decay: float = 0.995
    """Decay of the target critics' weights per update."""
    initial_temperature: float = 1.0
    """Weight of the entropy at the start (alpha); it is learned, for an entropy of −1 nat per action dimension."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, "algorithm", self, "num_critics")
        fraction("algorithm", self, "ema_decay")
        positive("algorithm", self, "initial_temperature")
