"""Settings of soft actor-critic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from apex_acer.config.algorithm import NStepConfig
from apex_acer.config.checks import at_least, fraction, positive

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class SacConfig(NStepConfig):
    """Soft actor-critic (arXiv 1812.05905), for continuous actions."""

    actions = "Box"
    num_losses = 2

    name: str = "sac"
    critics: int = 2
    """Number of critics, of which the smallest estimate counts."""
    ema_decay: float = 0.995
    """Decay of the target critics' weights per update."""
    initial_temperature: float = 1.0
    """Weight of the entropy at the start; it is learned, so that the entropy comes to −1 nat per action dimension."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, "algorithm", {"critics": self.critics})
        fraction("algorithm", {"ema_decay": self.ema_decay})
        positive("algorithm", {"initial_temperature": self.initial_temperature})
