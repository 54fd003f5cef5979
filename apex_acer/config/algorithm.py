"""Settings that algorithms share, and where to find an algorithm by its name without importing it."""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from apex_acer.config.checks import at_least, fraction, importable, positive, typed
from apex_acer.system import imports
from apex_acer.system.errors import require


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
    """The settings that all algorithms have; those of a user's own algorithm derive from this class.

    What is no field is a fact about the algorithm, by which `rules.py` refuses a run that does not suit it.
    """

    actions: ClassVar[str] = ""
    """The kind of action space that the algorithm is for: `Discrete` or `Box`; empty: both."""
    recurrent: ClassVar[bool | None] = None
    """Whether its network has an LSTM: always (True), never (False), or as `network.lstm` says (None)."""
    has_softmax: ClassVar[bool] = True
    """Whether actors sample from a policy that has a temperature."""
    has_replay: ClassVar[bool] = True
    """Whether the algorithm can learn from replay; otherwise the section `[replay]` must be left out."""
    shares_updates: ClassVar[bool] = True
    """Whether several learners can make an update together."""
    num_losses: ClassVar[int] = 1
    """Losses that share no trained parameters, so that as many threads can compute them side by side."""
    minibatches_key: ClassVar[str] = ""
    """The setting that says into how many equal minibatches a batch is cut; empty: none does."""

    name: str = ""
    """The algorithm: `acer`, `continuous_acer`, `apex_dqn`, `r2d2`, `ddpg`, `sac`, `actor_critic`, `ppo`, `trpo`, or
    `module:class` of your own."""
    gamma: float = 0.99
    """Discount per environment step."""
    unroll_length: int = 20
    """Steps per sequence (k)."""
    replay_ratio: float = 4.0
    """Replayed steps per fresh step; 0: no replay memory is kept."""
    reward_clip: float = 0.0
    """Rewards are clipped to ± this value before learning; 0: not clipped."""
    terminal_penalty: float = 0.0
    """Subtracted, after clipping, from the reward of a step that terminates; in Atari training also for each lost life."""

    def __post_init__(self) -> None:
        typed("algorithm", self)
        fraction("algorithm", self, "gamma")
        at_least(1, "algorithm", self, "unroll_length")
        at_least(0, "algorithm", self, "replay_ratio", "reward_clip", "terminal_penalty")

    @property
    def waits(self) -> bool:
        """Whether actors wait for each update, so that what is learned from was acted with the newest weights."""
        return False

    @property
    def sampling(self) -> Sampling:
        """How the algorithm consumes data."""
        return Sampling(fresh=True)


@dataclass(frozen=True)
class SequenceConfig(AlgorithmConfig):
    """The settings of algorithms that learn from whole sequences."""

    normalise_rewards: bool = False
    """Divide rewards by the running standard deviation of discounted returns, or a tenth of their mean if that is more."""


@dataclass(frozen=True)
class NStepConfig(AlgorithmConfig):
    """The settings of algorithms that learn from replay alone, from windows of n steps."""

    recurrent = False
    has_softmax = False

    n_steps: int = 1
    """Rewards summed before the bootstrap; fewer if the episode or the sequence ends earlier."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("algorithm", self, "replay_ratio")  # it learns from replay alone
        at_least(1, "algorithm", self, "n_steps")
        allowed = f"give at most algorithm.unroll_length ({self.unroll_length})"
        require(self.n_steps <= self.unroll_length, "algorithm.n_steps", self.n_steps, allowed)

    @property
    def sampling(self) -> Sampling:
        """Only replay: single steps, each with the n − 1 steps after it."""
        return Sampling(fresh=False, n_steps=self.n_steps)


@dataclass(frozen=True)
class UnreadConfig(AlgorithmConfig):
    """The settings of a user's own algorithm if its module was not imported, because the file may come from anywhere."""

    others: dict[str, Any] = field(default_factory=dict)
    """The settings that only that algorithm has, unchecked."""


# ── where algorithms are ──


class Place(NamedTuple):
    """Where an algorithm is."""

    settings: str
    """`module:class` of its settings, whose module imports no torch."""
    algorithm: str
    """`module:class` of its `Algorithm`."""


def _place(folder: str, settings: str, algorithm: str) -> Place:
    package = f"apex_acer.algorithms.{folder}"
    return Place(f"{package}.settings:{settings}", f"{package}.{algorithm}")


ALGORITHMS = {
    "acer": _place("acer", "AcerConfig", "acer:Acer"),
    "continuous_acer": _place("acer", "ContinuousAcerConfig", "continuous:ContinuousAcer"),
    "apex_dqn": _place("dqn", "ApexDqnConfig", "apex_dqn:ApexDqn"),
    "r2d2": _place("dqn", "R2d2Config", "r2d2:R2d2"),
    "ddpg": _place("ddpg", "DdpgConfig", "ddpg:Ddpg"),
    "sac": _place("sac", "SacConfig", "sac:Sac"),
    "actor_critic": _place("on_policy", "ActorCriticConfig", "actor_critic:ActorCritic"),
    "ppo": _place("on_policy", "PpoConfig", "ppo:Ppo"),
    "trpo": _place("on_policy", "TrpoConfig", "trpo:Trpo"),
}
"""The package's algorithms by name."""


@functools.cache
def settings_classes() -> dict[str, type[AlgorithmConfig]]:
    """The settings of the package's algorithms by name."""
    places = {name: place.settings.split(":") for name, place in ALGORITHMS.items()}
    return {name: getattr(importlib.import_module(module), cls) for name, (module, cls) in places.items()}


def default_settings() -> AlgorithmConfig:
    """ACER's settings, which a run has that names no algorithm."""
    return settings_classes()["acer"]()


def algorithm_settings(name: str) -> type[AlgorithmConfig]:
    """The class of the settings of the algorithm `name`; raises `ConfigError` if that or the algorithm cannot be used."""
    key = "algorithm.name"
    known = settings_classes()
    importable(key, name, "module:class", *known)
    if name in known:
        return known[name]
    cls = imports.load(key, name, "class")
    settings: Any = getattr(cls, "settings_class", None)
    require(isinstance(settings, type), key, name, "give module:class of an apex_acer.algorithms.algorithm.Algorithm")
    halves = (cls, getattr(cls, "agent_class", None))
    names = (name for half in halves for name in getattr(half, "__abstractmethods__", ("agent_class",)))
    lacking = ", ".join(sorted(names))
    require(not lacking, key, name, f"have it define {lacking}")
    is_own = issubclass(settings, AlgorithmConfig) and "__dataclass_fields__" in vars(settings)
    require(is_own, key, name, "have its settings_class be a frozen dataclass that derives from AlgorithmConfig")
    kinds = "have the actions of its settings_class be 'Discrete', 'Box' or '' for both"
    require(settings.actions in ("Discrete", "Box", ""), key, name, kinds)
    imports.attempt(key, name, lambda: settings(name=name))
    return settings  # type: ignore[no-any-return]
