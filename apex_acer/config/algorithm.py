"""Settings that algorithms share; those of one algorithm stand beside it, in `algorithms/<folder>/settings.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from apex_acer.config.checks import at_least, fraction, positive, require, typed

if TYPE_CHECKING:
    from apex_acer.config.run import RunConfig


class Sampling(NamedTuple):
    """How an algorithm consumes data."""

    fresh: bool
    """Whether each sequence is learned from once as it arrives, in batches of fresh sequences only."""
    replays: Literal["poisson", "fixed"] = "fixed"
    """How many replays a fresh sequence is worth: drawn from Poisson(replay ratio), or exactly the replay ratio."""
    n_steps: int = 0
    """The n of n-step transitions; 0: samples are sequences."""
    whole_episodes: bool = False
    """Whether each sequence is one episode from its start, whose steps after its end are masked."""
    burn_in: int = 0
    """Masked steps in front of each sequence, the last ones of the sequence before it."""


@dataclass(frozen=True)
class AlgorithmConfig:
    """The settings that all algorithms have; those of a user's own algorithm derive from this class."""

    actions: ClassVar[str] = ""
    """The kind of action space that the algorithm is for: `Discrete` or `Box`; empty: both."""
    num_losses: ClassVar[int] = 1
    """Losses that share no trained parameters, so that as many threads can compute them side by side."""
    has_replay: ClassVar[bool] = True
    """Whether the algorithm can learn from replay; otherwise the section `[replay]` must be left out."""

    name: str = ""
    """The algorithm: `acer`, `continuous_acer`, `apex_dqn`, `r2d2`, `ddpg`, `sac`, `actor_critic`, `ppo`, `trpo`, or
    `module:class` of your own."""
    gamma: float = 0.99
    """Discount per environment step."""
    unroll_length: int = 20
    """Steps per segment (k)."""
    replay_ratio: float = 4.0
    """Replayed steps per fresh step; 0: no replay memory is kept."""
    reward_clip: float = 0.0
    """Rewards are clipped to ± this value before learning; 0: not clipped."""
    terminal_penalty: float = 0.0
    """Subtracted, after clipping, from the reward of a step that terminates; in Atari training also for each lost life."""

    def __post_init__(self) -> None:
        typed("algorithm", self)
        fraction("algorithm", {"gamma": self.gamma})
        at_least(1, "algorithm", {"unroll_length": self.unroll_length})
        names = ("replay_ratio", "reward_clip", "terminal_penalty")
        at_least(0, "algorithm", {name: getattr(self, name) for name in names})

    @property
    def waits(self) -> bool:
        """Whether actors wait for each update, so that what is learned from was acted with the newest weights."""
        return False

    @property
    def sampling(self) -> Sampling:
        """How the algorithm consumes data."""
        return Sampling(fresh=True)

    def require_fit(self, run: RunConfig) -> None:
        """Raises `ConfigError` if another section of the run does not suit the algorithm."""


@dataclass(frozen=True)
class SegmentConfig(AlgorithmConfig):
    """The settings of algorithms that learn from whole segments."""

    normalise_rewards: bool = False
    """Divide rewards by the running standard deviation of discounted returns, or a tenth of their mean if that is more."""


@dataclass(frozen=True)
class NStepConfig(AlgorithmConfig):
    """The settings of algorithms that learn from replay alone, from windows of n steps."""

    n_steps: int = 1
    """Rewards summed before the bootstrap; fewer if the episode or the segment ends earlier."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("algorithm", {"replay_ratio": self.replay_ratio})  # it learns from replay alone
        at_least(1, "algorithm", {"n_steps": self.n_steps})
        allowed = f"give at most algorithm.unroll_length ({self.unroll_length})"
        require(self.n_steps <= self.unroll_length, "algorithm.n_steps", self.n_steps, allowed)

    @property
    def sampling(self) -> Sampling:
        """Only replay: single steps, each with the n − 1 steps after it."""
        return Sampling(fresh=False, n_steps=self.n_steps)

    def require_fit(self, run: RunConfig) -> None:
        """Requires a network without memory, because single steps have no recurrent state, and no temperature."""
        lstm = run.network.lstm
        require(lstm == 0, "network.lstm", lstm, f"{self.name} learns from single steps; give 0")
        require_no_softmax(run)


def require_no_softmax(run: RunConfig) -> None:
    """Requires no temperature, which only a policy that is sampled from has."""
    name, actors = run.algorithm.name, run.actors
    for key in ("temperature_high", "temperature_low"):
        value = getattr(actors, key)
        require(value == 1, f"actors.{key}", value, f"{name} has no softmax; give 1")


@dataclass(frozen=True)
class UnreadConfig(AlgorithmConfig):
    """The settings of a user's own algorithm if its module was not imported, because the file may come from anywhere."""

    others: dict[str, Any] = field(default_factory=dict)
    """The settings that only that algorithm has, unchecked."""
