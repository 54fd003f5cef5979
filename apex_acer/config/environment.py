"""The settings of environments and actors."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from apex_acer.config.checks import (
    at_least,
    device_name,
    fraction,
    importable,
    json_object,
    no_file,
    positive,
    thread_count,
    typed,
)
from apex_acer.config.remote import RemoteConfig
from apex_acer.system.errors import require

LARGEST_SCREEN = 1024  # pixels; the console has 210 by 160


@dataclass(frozen=True)
class AtariConfig:
    """The Atari protocol; it is used if `environment.id` begins with `ALE/`."""

    frame_skip: int = 4
    """Emulator frames per action; the last two are max-pooled."""
    sticky_actions: float = 0.0
    """Probability that the emulator repeats the previous action (0.25 in Machado et al. 2018)."""
    noop_max: int = 30
    """Maximum number of no-op frames after a reset; the number is random."""
    fire_reset: bool = True
    """Press FIRE at a reset in games that wait for it."""
    life_loss: bool = True
    """In training, a lost life is `terminated` although the game continues; evaluations always play whole games."""
    training_frames: int = 108_000
    """Emulator frames after which a game of training is `truncated`; evaluations play 108,000, half an hour. A lower limit
    keeps games in which nothing happens any more out of the replay memory."""
    full_action_space: bool = False
    """Use all 18 actions instead of the game's own."""
    grayscale: bool = True
    """Use one grey plane instead of three colour planes."""
    screen_size: int = 84
    """Height and width of an observation in pixels."""

    def __post_init__(self) -> None:
        typed("environment.atari", self)
        at_least(1, "environment.atari", self, "frame_skip", "training_frames", "screen_size")
        size = self.screen_size
        require(size <= LARGEST_SCREEN, "environment.atari.screen_size", size, f"give 1 to {LARGEST_SCREEN}")
        at_least(0, "environment.atari", self, "noop_max")
        fraction("environment.atari", self, "sticky_actions")


@dataclass(frozen=True)
class EnvironmentConfig:
    """The environment, and how it is presented to the network."""

    id: str = "CartPole-v1"
    """A registered gymnasium id, `module:Id` to import the module that registers it, or `remote` for remote clients."""
    kwargs: str | dict[str, Any] = "{}"
    """Keyword arguments of the environment: one JSON object; in a run file also a table, in Python also a dict."""
    wrappers: tuple[str, ...] = ()
    """Names of the form `module:function`; each takes and returns a gymnasium environment, the first is innermost."""
    stack: int = 1
    """Number of newest observations that the network sees together, oldest first."""
    channels: Literal["auto", "first", "last"] = "auto"
    """Where images have their channels. `auto` guesses: if two of the three sizes are equal, they are height and width;
    otherwise the smaller of the first and the last size is channels, or the last if these are equal."""
    action_masks: bool | None = None
    """Whether `info["action_mask"]` says which actions are legal; None: found out when a run begins."""
    atari: AtariConfig = field(default_factory=AtariConfig)
    remote: RemoteConfig = field(default_factory=RemoteConfig)

    def __post_init__(self) -> None:
        registered = "give the id that it is registered as, module:Id"
        require(isinstance(self.id, str), "environment.id", self.id, registered)
        typed("environment", self)
        require(bool(self.id), "environment.id", self.id, "give a gymnasium id")
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
        named = self.remote.local
        allowed = "the environments are remote clients; name a gymnasium id that is the same"
        require(bool(named), "environment.remote.local", named, allowed)
        return dataclasses.replace(self, id=named)

    def keyword_arguments(self) -> dict[str, Any]:
        """`kwargs` as a dict; raises `ConfigError` if it is not one JSON object."""
        return json_object("environment.kwargs", self.kwargs)


@dataclass(frozen=True)
class ActorsConfig:
    """The processes that run environments."""

    count: int = 0
    """Actor processes; 0: chosen by the number of cores."""
    environments: int = 8
    """Environments per actor, stepped as one vector."""
    temperature_low: float = 1.0
    """Softmax temperature of the first actor; the recorded mu includes it."""
    temperature_high: float = 1.0
    """Softmax temperature of the last actor; those in between are spaced geometrically."""
    weights_every: int = 20
    """Steps of each environment after which an actor asks for newer weights (with its next unroll)."""
    max_unanswered: int = 2
    """Unrolls that an actor may have unanswered before it waits for the learner."""
    device: str = "cpu"
    """Device of the actors' networks: `cpu`, `cuda`, `cuda:N`, or `auto`: cuda if there is one."""
    threads: int = 0
    """Threads of an actor's network and of its Atari emulators; 0: chosen by the number of cores."""

    def __post_init__(self) -> None:
        typed("actors", self)
        at_least(1, "actors", self, "environments", "weights_every", "max_unanswered")
        at_least(0, "actors", self, "count")
        thread_count("actors.threads", self.threads)
        device_name("actors.device", self.device)
        positive("actors", self, "temperature_low", "temperature_high")

    def temperature(self, index: int) -> float:
        """T_i = low · (high / low)^(i / (N − 1)), the temperature of actor `index`."""
        low, high = self.temperature_low, self.temperature_high
        return low if self.count == 1 else float(low * (high / low) ** (index / (self.count - 1)))
