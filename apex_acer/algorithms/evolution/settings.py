"""Settings of the algorithms that search in the space of parameters."""

from __future__ import annotations

from dataclasses import dataclass

from apex_acer.config import AlgorithmConfig, Sampling, at_least, between, fraction, positive, require

MOST_STD = 1e6  # beyond it parameters would soon not be finite


@dataclass(frozen=True)
class EvolutionConfig(AlgorithmConfig):
    """The settings of algorithms whose actors act with other weights in each episode, those of a member."""

    recurrent = False
    has_softmax = False
    has_replay = False
    has_optimizer = False
    shares_updates = False
    needs_hidden_layer = False

    gamma: float = 1.0
    """Discount γ per environment step in a return, which is a member's fitness."""
    unroll_length: int = 1000
    """Most environment steps of an episode; one that has not ended by then counts with its return so far."""
    replay_ratio: float = 0.0
    """Always 0: these algorithms have no replay."""
    episodes_per_member: int = 1
    """Episodes whose mean return is a member's fitness; `learner.batch_size` episodes are a generation."""
    initial_std: float = 1.0
    """Standard deviation of each parameter at the start, around the network's initial weights."""

    @property
    def waits(self) -> bool:
        """Always: a generation consists of its own members only."""
        return True

    @property
    def sampling(self) -> Sampling:
        """Whole episodes, each in one batch."""
        return Sampling(fresh=True, whole_episodes=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        without = f"{self.name} has no replay; give 0"
        require(self.replay_ratio == 0, "algorithm.replay_ratio", self.replay_ratio, without)
        at_least(1, "algorithm", self, "episodes_per_member")
        positive("algorithm", self, "initial_std")
        between(0, MOST_STD, "algorithm", self, "initial_std")


@dataclass(frozen=True)
class CemConfig(EvolutionConfig):
    """The cross-entropy method with extra noise (de Boer et al. 2005; Szita and Lőrincz 2006)."""

    name: str = "cem"
    elite_fraction: float = 0.1
    """Fraction of a generation's members, those with the highest fitness, to which the next generation is fitted."""
    extra_std: float = 0.2
    """Standard deviation of the extra noise, whose variance is added to that of the elites."""
    extra_generations: int = 50
    """Generations in which the variance of the extra noise falls linearly to 0; 0: it stays."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction("algorithm", self, "elite_fraction")
        between(0, MOST_STD, "algorithm", self, "extra_std")
        at_least(0, "algorithm", self, "extra_generations")
