"""Settings of ACER, for discrete and for continuous actions."""

from __future__ import annotations

from dataclasses import dataclass

from apex_acer.config import Sampling, SequenceConfig, at_least, fraction, positive, require


@dataclass(frozen=True)
class AcerBaseConfig(SequenceConfig):
    """The settings of ACER for both kinds of actions."""

    burn_in: int = 0
    """Number of first steps of a replayed sequence that only warm up the recurrent state of both networks."""
    truncation_threshold: float = 10.0
    """Importance weights of the policy term are truncated at this value (c); a second term corrects the bias."""
    trust_region_delta: float = 1.0
    """Bound on the linearised KL divergence from the average policy, per sample."""
    ema_decay: float = 0.99
    """Decay of the average network's weights per update (alpha)."""
    q_cost: float = 0.5
    """Weight of the Q loss ½ (Q_ret − Q)²."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction("algorithm", self, "ema_decay")
        at_least(0, "algorithm", self, "burn_in")
        allowed = f"give less than algorithm.unroll_length ({self.unroll_length})"
        require(self.burn_in < self.unroll_length, "algorithm.burn_in", self.burn_in, allowed)
        at_least(0, "algorithm", self, "truncation_threshold", "q_cost")
        positive("algorithm", self, "trust_region_delta")

    @property
    def sampling(self) -> Sampling:
        """Each sequence once as it arrives, and again as often as Poisson(replay ratio) says."""
        return Sampling(fresh=True, replays="poisson")


@dataclass(frozen=True)
class AcerConfig(AcerBaseConfig):
    """ACER (arXiv 1611.01224)."""

    actions = "Discrete"

    name: str = "acer"
    entropy_cost: float = 0.01
    """Weight of the entropy bonus."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, "algorithm", self, "entropy_cost")


@dataclass(frozen=True)
class ContinuousAcerConfig(AcerBaseConfig):
    """ACER for continuous actions (arXiv 1611.01224, section 5)."""

    actions = "Box"

    name: str = "continuous_acer"
    truncation_threshold: float = 5.0
    """Importance weights of the policy term are truncated at this value (c); a second term corrects the bias."""
    ema_decay: float = 0.995
    """Decay of the average network's weights per update (alpha)."""
    q_cost: float = 0.5
    """Weight of the losses ½ (Q_ret − Q)² and ½ (target − V)²."""
    std: float = 0.3
    """Standard deviation of the policy in the normalised box [−1, 1] (sigma); it is not learned."""
    num_samples: int = 5
    """Actions of the policy over which the network averages the advantage (n)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("algorithm", self, "std")
        at_least(1, "algorithm", self, "num_samples")
