"""Settings of DDPG and TD3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from apex_acer.config import ContinuousConfig, at_least, fraction


@dataclass(frozen=True)
class DdpgConfig(ContinuousConfig):
    """DDPG (arXiv 1509.02971), for continuous actions; with two critics, delays and smoothing TD3 (arXiv 1802.09477)."""

    name: str = "ddpg"
    num_critics: int = 1
    """Number of critics, of which the smallest estimate is the target; 2 in TD3."""
    policy_every: int = 1
    """Updates of the critics per update of the policy and the target networks; 2 in TD3."""
    target_noise: float = 0.0
    """Standard deviation of the noise that smooths the target policy's actions; 0.2 in TD3."""
    target_noise_clip: float = 0.5
    """Smoothing noise is clipped to ± this value."""
    critic_decay: float = 0.0
    """Weight λ of ½ λ Σ w² of the critics' weights, without biases, in their loss; 0.01 in the paper."""
    ema_decay: float = 0.995
    """Decay of the target networks' weights per update of the policy."""
    noise: Literal["gaussian", "ornstein_uhlenbeck"] = "gaussian"
    """Exploration noise of the actions: independent in each step, or correlated in time."""
    noise_std: float = 0.1
    """Standard deviation of the exploration noise, for actions in [−1, 1], in the first environment; the i-th of N has
    noise_std ^ (1 + i / (N − 1) · `noise_alpha`). Of Ornstein-Uhlenbeck noise it is that of a step's innovation."""
    noise_alpha: float = 0.0
    """Exponent by which the environments' noise differs; 0: all have the same."""
    noise_theta: float = 0.15
    """Share by which Ornstein-Uhlenbeck noise decays in a step (theta)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, "algorithm", self, "num_critics", "policy_every")
        at_least(0, "algorithm", self, "target_noise", "target_noise_clip", "critic_decay", "noise_std", "noise_alpha")
        fraction("algorithm", self, "ema_decay", "noise_theta")
