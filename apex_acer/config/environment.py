"""Where an agent acts, and the processes that do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import tyro

from apex_acer.config.checks import (
    at_least,
    device_name,
    fraction,
    importable,
    positive,
    require,
    thread_count,
    typed,
)


@dataclass(frozen=True)
class AtariConfig:
    """The Atari protocol; used where `environment.id` begins with `ALE/`."""

    frame_skip: int = 4
    """Emulator frames per action; the last two are max-pooled."""
    sticky_actions: float = 0.0
    """Probability that the emulator repeats the previous action (0.25 in Machado et al. 2018)."""
    noop_max: int = 30
    """Up to this many random no-op frames at a reset."""
    fire_reset: bool = True
    """Press FIRE at a reset in games that wait for it."""
    life_loss: bool = True
    """In training, a lost life is `terminated` although the game goes on; evaluation always plays whole games."""
    full_action_space: bool = False
    """All 18 actions instead of the game's own."""
    grayscale: bool = True
    """One grey plane instead of three colour planes."""
    screen_size: int = 84
    """Height and width of an observation, pixels."""

    def __post_init__(self) -> None:
        typed("environment.atari", self)
        at_least(1, "environment.atari", {"frame_skip": self.frame_skip, "screen_size": self.screen_size})
        at_least(0, "environment.atari", {"noop_max": self.noop_max})
        fraction("environment.atari", {"sticky_actions": self.sticky_actions})


@dataclass(frozen=True)
class EnvironmentConfig:
    """Which environment, and how it is presented."""

    id: str = "CartPole-v1"
    """A registered gymnasium id, or `module:Id` to import the module that registers it."""
    kwargs: Annotated[str | dict[str, Any], tyro.conf.arg(constructor=str, metavar="JSON")] = "{}"
    """Keyword arguments of the environment: one JSON object, in a run file also a table, in Python also a dict."""
    wrappers: tuple[str, ...] = ()
    """`module:function` names; each takes and returns a gymnasium environment, the first is innermost."""
    stack: int = 1
    """Newest observations shown to the network together, oldest first."""
    channels: Literal["auto", "first", "last"] = "auto"
    """Where images have their channels. `auto` guesses: of three sizes, two that are equal are height and width; else the
    smaller of the first and the last is channels, and of two alike the last."""
    atari: AtariConfig = field(default_factory=AtariConfig)

    def __post_init__(self) -> None:
        if isinstance(self.kwargs, Mapping):  # one form from here on, in files and on the wire
            object.__setattr__(self, "kwargs", _as_json(self.kwargs))
        typed("environment", self)
        require(bool(self.id), "environment.id", self.id, "give a gymnasium id")
        at_least(1, "environment", {"stack": self.stack})
        for name in self.wrappers:
            importable("environment.wrappers", name, "module:function")
        self.keyword_arguments()

    @property
    def is_atari(self) -> bool:
        """Whether ALE's own vector environment runs this id."""
        return self.id.rpartition(":")[2].startswith("ALE/")

    def keyword_arguments(self) -> dict[str, Any]:
        """`kwargs` as a dict; raises `ConfigError` where it is not one JSON object."""
        try:
            kwargs = json.loads(str(self.kwargs))
        except (ValueError, RecursionError):  # no JSON, numbers too long, or nested too deeply
            kwargs = None
        require(isinstance(kwargs, dict), "environment.kwargs", self.kwargs, "give one JSON object")
        return dict(kwargs)


def _as_json(kwargs: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(kwargs, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        text = ""
    plain = bool(text) and all(isinstance(key, str) for key in kwargs)
    require(
        plain,
        "environment.kwargs",
        dict(kwargs),
        "give values that JSON has: texts, numbers, true, false, lists, tables",
    )
    return text


@dataclass(frozen=True)
class ActorsConfig:
    """The processes that run environments."""

    count: Annotated[int, tyro.conf.arg(aliases=["--actors"])] = 0
    """Actor processes; 0: chosen from the cores present."""
    environments: int = 8
    """Environments per actor, stepped as one vector."""
    temperature_low: float = 1.0
    """Softmax temperature of the first actor; mu is recorded after it."""
    temperature_high: float = 1.0
    """Softmax temperature of the last actor; those between are spaced geometrically."""
    weights_every: int = 20
    """Steps of each environment between asking for newer weights (asked with an unroll)."""
    max_unanswered: int = 2
    """Unrolls an actor may have unanswered before it waits for the learner."""
    device: str = "cpu"
    """Where actors' networks act: `cpu`, `cuda`, `cuda:N`, or `auto`: cuda where there is one."""
    threads: int = 0
    """Threads of an actor's network and of its Atari emulators; 0: chosen from the cores present."""

    def __post_init__(self) -> None:
        typed("actors", self)
        names = ("environments", "weights_every", "max_unanswered")
        at_least(1, "actors", {name: getattr(self, name) for name in names})
        at_least(0, "actors", {"count": self.count})
        thread_count("actors.threads", self.threads)
        device_name("actors.device", self.device)
        positive("actors", {"temperature_low": self.temperature_low, "temperature_high": self.temperature_high})

    def temperature(self, index: int) -> float:
        """T_i = low · (high / low)^(i / (N − 1)), the temperature of actor `index`."""
        if self.count == 1:
            return self.temperature_low
        return float(
            self.temperature_low * (self.temperature_high / self.temperature_low) ** (index / (self.count - 1))
        )
