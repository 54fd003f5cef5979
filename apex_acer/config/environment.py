"""The settings of environments and actors."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from apex_acer.config.checks import (
    MOST_THREADS,
    at_least,
    between,
    device_name,
    fraction,
    importable,
    json_object,
    no_file,
    positive,
    typed,
)
from apex_acer.config.remote import RemoteConfig
from apex_acer.system.errors import require

LARGEST_SCREEN = 1024  # pixels; the console has 210 by 160


@dataclass(frozen=True)
class AtariConfig:
    """Atari preprocessing; used if `environment.id` is an `ALE/` game."""

    frame_skip: int = 4
    """Emulator frames per action; the last two are max-pooled."""
    sticky_actions: float = 0.0
    """Probability that the emulator repeats the previous action; Machado et al. (2018) use 0.25."""
    noop_max: int = 30
    """Maximum number of no-op frames after a reset; the number is random."""
    fire_reset: bool = True
    """Press FIRE after a reset and after a lost life, where the game has it; a life begins with an empty frame stack."""
    life_loss: bool = True
    """In training, a lost life sets `terminated` while the game goes on; evaluations always play whole games."""
    training_frames: int = 108_000
    """Emulator frames after which a training game is truncated; evaluations play 108,000 (30 minutes). A lower limit
    keeps stalled games out of replay."""
    full_action_space: bool = False
    """Use all 18 actions instead of the game's minimal set."""
    grayscale: bool = True
    """Observe one grey channel instead of three colour channels."""
    screen_size: int = 84
    """Height and width of an observation in pixels."""

    def __post_init__(self) -> None:
        typed("environment.atari", self)
        at_least(1, "environment.atari", self, "frame_skip", "training_frames")
        between(1, LARGEST_SCREEN, "environment.atari", self, "screen_size")
        at_least(0, "environment.atari", self, "noop_max")
        fraction("environment.atari", self, "sticky_actions")


@dataclass(frozen=True)
class EnvironmentConfig:
    """The environment, and how the network sees its observations."""

    id: str = "CartPole-v1"
    """A registered gymnasium id, `module:Id` to import the module that registers it, `module:function` for PettingZoo's
    games of several agents or for a vector of `num_envs` environments, or `remote` for remote clients."""
    kwargs: str | dict[str, Any] = "{}"
    """Keyword arguments of the environment as one JSON object; a table in a run file and a dict in Python work too."""
    wrappers: tuple[str, ...] = ()
    """Wrappers as `module:function`, innermost first; each takes and returns an environment, a vector or a game."""
    stack: int = 1
    """Frame stack: number of newest observations in one network input, oldest first."""
    channels: Literal["auto", "first", "last"] = "auto"
    """Position of an image's channels. `auto`: if two neighbouring sizes of the three are equal, they are height and
    width; otherwise the smaller of the first and the last size is channels, the last in a tie."""
    action_masks: bool | None = None
    """Use `info["action_mask"]` as the mask of legal actions; None: use it if the check before a run finds it."""
    atari: AtariConfig = field(default_factory=AtariConfig)
    remote: RemoteConfig = field(default_factory=RemoteConfig)

    def __post_init__(self) -> None:
        is_text = isinstance(self.id, str) and self.id != ""
        require(
            is_text, "environment.id", self.id, "give a gymnasium id: the one that it is registered as, or module:Id"
        )
        typed("environment", self)
        no_file("environment.id", self.id)
        at_least(1, "environment", self, "stack")
        for name in self.wrappers:
            importable("environment.wrappers", name, "module:function")
        self.keyword_arguments()
        if self.is_remote:
            self.remote.require_spaces()

    @property
    def is_atari(self) -> bool:
        """Whether ALE's own vector environment is used."""
        return self.id.rpartition(":")[2].startswith("ALE/")

    @property
    def is_remote(self) -> bool:
        """Whether the environments are remote clients."""
        return self.id == "remote"

    @property
    def local(self) -> EnvironmentConfig:
        """The environment that this program can make itself; raises `ConfigError` if there are only remote clients."""
        if not self.is_remote:
            return self
        name = self.remote.local
        allowed = "the environments are remote clients; give the gymnasium id of an environment like them"
        require(bool(name), "environment.remote.local", name, allowed)
        return dataclasses.replace(self, id=name)

    def keyword_arguments(self) -> dict[str, Any]:
        """`kwargs` as a dict; raises `ConfigError` if it is not one JSON object."""
        return json_object("environment.kwargs", self.kwargs)


@dataclass(frozen=True)
class ActorsConfig:
    """The actors: processes that step environments."""

    count: int = 0
    """Number of actor processes; 0: chosen by the number of cores."""
    environments: int = 8
    """Environments per actor, stepped together as one vector; of games of several agents, the number of agents."""
    temperature_low: float = 1.0
    """Softmax temperature of the first actor's policy; the recorded behaviour policy includes it."""
    temperature_high: float = 1.0
    """Softmax temperature of the last actor's policy; temperatures in between are spaced geometrically."""
    weights_every: int = 20
    """Steps of each environment after which an actor asks for newer weights, with its next unroll."""
    max_unanswered: int = 2
    """Maximum number of unrolls in flight; an actor that has sent as many waits for the learner's answer."""
    device: str = "cpu"
    """Device of the actors' networks: `cpu`, `cuda`, `cuda:N`, or `auto` (cuda if there is one)."""
    threads: int = 0
    """Threads of an actor's network and of its Atari emulators; 0: chosen by the number of cores."""

    def __post_init__(self) -> None:
        typed("actors", self)
        at_least(1, "actors", self, "environments", "weights_every", "max_unanswered")
        at_least(0, "actors", self, "count")
        between(0, MOST_THREADS, "actors", self, "threads")
        device_name("actors.device", self.device)
        positive("actors", self, "temperature_low", "temperature_high")

    def temperature(self, index: int) -> float:
        """T_i = low · (high / low)^(i / (N − 1)), the temperature of actor `index`."""
        low, high = self.temperature_low, self.temperature_high
        return low if self.count == 1 else float(low * (high / low) ** (index / (self.count - 1)))


@dataclass(frozen=True)
class SelfPlayConfig:
    """Opponents of the actors in games of two players who take turns: the newest weights, and snapshots of earlier ones."""

    pool: int = 10
    """Number of snapshots that an actor keeps, the newest ones; 0: all games are against the newest weights."""
    every: int = 20_000
    """Environment steps of the run between two snapshots."""
    newest: float = 0.5
    """Probability that a game is against the newest weights; otherwise it is against a snapshot, each as likely."""

    def __post_init__(self) -> None:
        typed("self_play", self)
        at_least(0, "self_play", self, "pool")
        at_least(1, "self_play", self, "every")
        fraction("self_play", self, "newest")
