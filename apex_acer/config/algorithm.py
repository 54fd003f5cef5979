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
    """Replayed samples per fresh sequence: drawn from Poisson(replay ratio), or exactly the replay ratio."""
    n_steps: int = 0
    """The n of n-step transitions; 0: samples are sequences."""
    whole_episodes: bool = False
    """Whether each sequence is one episode from its start, with the steps after its end masked."""
    burn_in: int = 0
    """Burn-in: masked steps in front of each sequence, copied from the end of the previous sequence."""


@dataclass(frozen=True)
class AlgorithmConfig:
    """Settings of every algorithm, from which the settings of a user's own algorithm derive.

    Class variables are facts about the algorithm, by which a run that does not suit it is refused.
    """

    actions: ClassVar[str] = ""
    """Kind of action space that the algorithm supports: `Discrete` or `Box`; empty: both, also at once."""
    recurrent: ClassVar[bool | None] = None
    """Whether the network has an LSTM: always (True), never (False), or as `network.lstm` says (None)."""
    has_softmax: ClassVar[bool] = True
    """Whether actors sample from a policy that has a temperature."""
    has_replay: ClassVar[bool] = True
    """Whether the algorithm can learn from replay; otherwise the section `[replay]` must be left out."""
    has_optimizer: ClassVar[bool] = True
    """Whether gradients train the network; otherwise the section `[optimizer]` must be left out."""
    needs_hidden_layer: ClassVar[bool] = True
    """Whether the network has one or more hidden layers; otherwise `network.hidden_sizes` may be empty: a linear policy."""
    shares_updates: ClassVar[bool] = True
    """Whether several learners can make an update together."""
    num_losses: ClassVar[int] = 1
    """Number of losses without shared parameters, which as many threads can compute in parallel."""
    minibatches_key: ClassVar[str] = ""
    """Name of the setting with the number of equal minibatches per batch; empty: there is none."""
    pixels_key: ClassVar[str] = ""
    """Name of the setting that must be 0 if observations have no image; empty: there is none."""

    name: str = ""
    """The algorithm: `acer`, `continuous_acer`, `apex_dqn`, `r2d2`, `ddpg`, `sac`, `actor_critic`, `ppo`, `trpo`, `pqn`,
    `cem`, `unreal`, or `module:class` of your own."""
    gamma: float = 0.99
    """Discount γ per environment step."""
    unroll_length: int = 20
    """Environment steps per sequence (k)."""
    replay_ratio: float = 4.0
    """Replayed steps per fresh step; 0: no replay memory."""
    reward_clip: float = 0.0
    """Bound of rewards: they are clipped to ± this value before learning; 0: no clipping."""
    terminal_penalty: float = 0.0
    """Subtracted, after clipping, from the reward of a step that terminates; in Atari training a lost life counts."""

    def __post_init__(self) -> None:
        typed("algorithm", self)
        fraction("algorithm", self, "gamma")
        at_least(1, "algorithm", self, "unroll_length")
        at_least(0, "algorithm", self, "replay_ratio", "reward_clip", "terminal_penalty")

    @property
    def waits(self) -> bool:
        """Whether actors wait for each update, so that all samples come from the newest weights."""
        return False

    @property
    def has_schedule(self) -> bool:
        """Whether exploration changes during the run."""
        return False

    @property
    def sampling(self) -> Sampling:
        """How the algorithm consumes data."""
        return Sampling(fresh=True)


@dataclass(frozen=True)
class SequenceConfig(AlgorithmConfig):
    """Settings of algorithms that learn from whole sequences."""

    normalise_rewards: bool = False
    """Divide rewards by the running standard deviation of returns, or by a tenth of their mean if that is larger."""


@dataclass(frozen=True)
class NStepConfig(AlgorithmConfig):
    """Settings of algorithms that learn from replayed n-step transitions alone."""

    recurrent = False
    has_softmax = False

    n_steps: int = 1
    """Rewards in an n-step return before the bootstrap; fewer if the episode or the sequence ends earlier."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("algorithm", self, "replay_ratio")
        at_least(1, "algorithm", self, "n_steps")
        allowed = f"give at most algorithm.unroll_length ({self.unroll_length})"
        require(self.n_steps <= self.unroll_length, "algorithm.n_steps", self.n_steps, allowed)

    @property
    def sampling(self) -> Sampling:
        """Replayed n-step transitions only."""
        return Sampling(fresh=False, n_steps=self.n_steps)


@dataclass(frozen=True)
class ContinuousConfig(NStepConfig):
    """Settings of algorithms that learn critics and a policy for continuous actions from replayed n-step transitions."""

    actions = "Box"
    num_losses = 2
    pixels_key = "image_shift"

    image_shift: int = 0
    """Largest random shift, in pixels, of the images that updates learn from (DrQ, arXiv 2004.13649, has 4); 0: none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, "algorithm", self, "image_shift")


@dataclass(frozen=True)
class UnreadConfig(AlgorithmConfig):
    """Settings of a user's own algorithm whose module was not imported, because the run file may come from anywhere."""

    needs_hidden_layer = False

    others: dict[str, Any] = field(default_factory=dict)
    """Keys that `AlgorithmConfig` lacks, and their unchecked values."""


# ── where algorithms are ──


ALGORITHMS = {
    "acer": "apex_acer.algorithms.acer.acer:Acer",
    "continuous_acer": "apex_acer.algorithms.acer.continuous:ContinuousAcer",
    "apex_dqn": "apex_acer.algorithms.dqn.apex_dqn:ApexDqn",
    "r2d2": "apex_acer.algorithms.dqn.r2d2:R2d2",
    "ddpg": "apex_acer.algorithms.ddpg.ddpg:Ddpg",
    "sac": "apex_acer.algorithms.sac.sac:Sac",
    "actor_critic": "apex_acer.algorithms.on_policy.actor_critic:ActorCritic",
    "ppo": "apex_acer.algorithms.on_policy.ppo:Ppo",
    "trpo": "apex_acer.algorithms.on_policy.trpo:Trpo",
    "pqn": "apex_acer.algorithms.on_policy.pqn:Pqn",
    "cem": "apex_acer.algorithms.evolution.cem:Cem",
    "unreal": "apex_acer.algorithms.unreal.unreal:Unreal",
}
"""The package's algorithms by name: `module:class`, whose settings are `<class>Config` in `settings.py` beside it."""


@functools.cache
def settings_classes() -> dict[str, type[AlgorithmConfig]]:
    """The settings classes of the package's algorithms by name, from modules that import no torch."""
    classes = {}
    for name, place in ALGORITHMS.items():
        module, cls = place.split(":")
        settings = importlib.import_module(f"{module.rpartition('.')[0]}.settings")
        classes[name] = getattr(settings, f"{cls}Config")
    return classes


def algorithm_settings(name: str) -> type[AlgorithmConfig]:
    """The settings class of the algorithm `name`; raises `ConfigError` if it or the algorithm cannot be used."""
    key = "algorithm.name"
    known = settings_classes()
    importable(key, name, "module:class", *known)
    if name in known:
        return known[name]
    cls = imports.load(key, name, "class")
    settings: Any = getattr(cls, "settings_class", None)
    require(isinstance(settings, type), key, name, "give module:class of an apex_acer.algorithms.algorithm.Algorithm")
    classes = (cls, getattr(cls, "agent_class", None))
    missing = ", ".join(sorted(n for each in classes for n in getattr(each, "__abstractmethods__", ("agent_class",))))
    require(not missing, key, name, f"have it define {missing}")
    is_settings = issubclass(settings, AlgorithmConfig) and "__dataclass_fields__" in vars(settings)
    require(is_settings, key, name, "have its settings_class be a frozen dataclass that derives from AlgorithmConfig")
    allowed = "have the actions of its settings_class be 'Discrete', 'Box' or '' for both"
    require(settings.actions in ("Discrete", "Box", ""), key, name, allowed)
    imports.attempt(key, name, lambda: settings(name=name))
    return settings  # type: ignore[no-any-return]
