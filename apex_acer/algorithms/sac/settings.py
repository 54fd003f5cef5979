"""Settings of soft actor-critic."""

from __future__ import annotations

from dataclasses import dataclass

from apex_acer.config import ContinuousConfig, at_least, fraction, positive, require


@dataclass(frozen=True)
class SacConfig(ContinuousConfig):
    """Soft actor-critic (arXiv 1812.05905), for continuous actions; with batch normalisation CrossQ (arXiv 1902.05605)."""

    name: str = "sac"
    num_critics: int = 2
    """Number of critics, of which the smallest estimate is used."""
    ema_decay: float = 0.995
    """Decay of the target critics' weights per update; CrossQ has none."""
    batch_norm: bool = False
    """Batch renormalisation of the inputs of all layers, of critics over both ends of the batch's transitions, in place
    of target critics (CrossQ); a layer warms up in its first 100,000 batches."""
    policy_every: int = 1
    """Updates of the critics per update of the policy and the temperature; 3 in CrossQ."""
    critic_hidden_sizes: tuple[int, ...] = ()
    """Units of each fully connected layer of the critics, 2048 in CrossQ; empty: `network.hidden_sizes`."""
    initial_temperature: float = 1.0
    """Weight of the entropy at the start (alpha); it is learned, for an entropy of −1 nat per action dimension."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, "algorithm", self, "num_critics", "policy_every")
        sizes, are_wide = self.critic_hidden_sizes, min(self.critic_hidden_sizes, default=1) >= 1
        require(are_wide, "algorithm.critic_hidden_sizes", sizes, "give widths that are each 1 or more")
        is_used = not self.batch_norm or self.ema_decay == type(self).ema_decay
        allowed = "batch_norm has no target critics; leave it out"
        require(is_used, "algorithm.ema_decay", self.ema_decay, allowed)
        fraction("algorithm", self, "ema_decay")
        positive("algorithm", self, "initial_temperature")
