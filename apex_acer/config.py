"""One run's configuration: frozen dataclasses, checked when they are made.

Each value is defined here once. The same keys are read from run files (`runfile.py`) and from the command line. Nothing
here imports torch, so that a manager can check a run before any heavy process starts.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import tyro


class ConfigError(Exception):
    """Something the user gave cannot be used; the message is one line: key or path, value, what is allowed."""


def require(condition: bool, key: str, value: object, allowed: str) -> None:
    """Raises `ConfigError` naming `key`, its `value` and what is `allowed`, unless `condition` holds."""
    if not condition:
        raise ConfigError(f"{key}: {value!r} is not allowed; {allowed}")


def _at_least(minimum: float, section: str, values: Mapping[str, float]) -> None:
    for name, value in values.items():
        require(math.isfinite(value) and value >= minimum, f"{section}.{name}", value, f"give {minimum} or more")


def _positive(section: str, values: Mapping[str, float]) -> None:
    for name, value in values.items():
        require(math.isfinite(value) and value > 0, f"{section}.{name}", value, "give a number above 0")


def _fraction(section: str, values: Mapping[str, float], *, one: bool = True) -> None:
    for name, value in values.items():
        ok = 0 <= value <= 1 and (one or value < 1)
        require(ok, f"{section}.{name}", value, f"give 0 to 1{'' if one else ', below 1'}")


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
        _at_least(1, "environment.atari", {"frame_skip": self.frame_skip, "screen_size": self.screen_size})
        _at_least(0, "environment.atari", {"noop_max": self.noop_max})
        _fraction("environment.atari", {"sticky_actions": self.sticky_actions})


@dataclass(frozen=True)
class EnvironmentConfig:
    """Which environment, and how it is presented."""

    id: str = "CartPole-v1"
    """A registered gymnasium id, or `module:Id` to import the module that registers it."""
    kwargs: str = "{}"
    """Keyword arguments of the environment, as one JSON object."""
    wrappers: tuple[str, ...] = ()
    """`module:function` names; each takes and returns a gymnasium environment, the first is innermost."""
    stack: int = 1
    """Newest observations shown to the network together, oldest first."""
    atari: AtariConfig = field(default_factory=AtariConfig)

    def __post_init__(self) -> None:
        require(bool(self.id), "environment.id", self.id, "give a gymnasium id")
        _at_least(1, "environment", {"stack": self.stack})
        for name in self.wrappers:
            require(
                re.fullmatch(r"\w[\w.]*:\w+", name) is not None,
                "environment.wrappers",
                name,
                "give module:function names",
            )
        self.keyword_arguments()

    @property
    def is_atari(self) -> bool:
        """Whether ALE's own vector environment runs this id."""
        return self.id.rpartition(":")[2].startswith("ALE/")

    def keyword_arguments(self) -> dict[str, Any]:
        """`kwargs` as a dict; raises `ConfigError` where it is not one JSON object."""
        try:
            kwargs = json.loads(self.kwargs)
        except json.JSONDecodeError:
            kwargs = None
        require(isinstance(kwargs, dict), "environment.kwargs", self.kwargs, "give one JSON object")
        return dict(kwargs)


@dataclass(frozen=True)
class ActorsConfig:
    """The processes that run environments."""

    count: Annotated[int, tyro.conf.arg(aliases=["--actors"])] = 2
    """Actor processes."""
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
    threads: int = 0
    """Threads of an actor's network and of its Atari emulators; 0: chosen from the cores present."""

    def __post_init__(self) -> None:
        names = ("count", "environments", "weights_every", "max_unanswered")
        _at_least(1, "actors", {name: getattr(self, name) for name in names})
        _at_least(0, "actors", {"threads": self.threads})
        _positive("actors", {"temperature_low": self.temperature_low, "temperature_high": self.temperature_high})

    def temperature(self, index: int) -> float:
        """T_i = low · (high / low)^(i / (N − 1)), the temperature of actor `index`."""
        if self.count == 1:
            return self.temperature_low
        return float(
            self.temperature_low * (self.temperature_high / self.temperature_low) ** (index / (self.count - 1))
        )


@dataclass(frozen=True)
class LearnerConfig:
    """The process that owns the device, the replay memory and the optimizer."""

    device: str = "auto"
    """`cpu`, `cuda`, `cuda:N`, or `auto`: cuda where there is one."""
    batch_size: int = 16
    """Segments (one environment's unroll) per update."""
    threads: int = 0
    """Threads of the learner's network on the CPU; 0: chosen from the cores present."""
    max_skipped_updates: int = 100
    """Non-finite updates in a row, all skipped, after which the run ends."""

    def __post_init__(self) -> None:
        kind, _, number = self.device.partition(":")
        ok = self.device in ("auto", "cpu", "cuda") or (kind == "cuda" and number.isdigit())
        require(ok, "learner.device", self.device, "give cpu, cuda, cuda:N or auto")
        _at_least(1, "learner", {"batch_size": self.batch_size, "max_skipped_updates": self.max_skipped_updates})
        _at_least(0, "learner", {"threads": self.threads})


@dataclass(frozen=True)
class OptimizerConfig:
    """How gradients become steps."""

    name: Literal["rmsprop", "adam"] = "rmsprop"
    """RMSProp (eps outside the root, as torch has it) or Adam."""
    learning_rate: float = 7e-4
    """Step size at the start."""
    schedule: Literal["constant", "linear"] = "constant"
    """`linear` falls to 0 at `stop.env_steps`."""
    eps: float = 1e-5
    """Added to the root of the mean square."""
    decay: float = 0.99
    """Decay of the mean square (RMSProp's alpha, Adam's second beta)."""
    max_grad_norm: float = 40.0
    """Gradients are scaled to at most this global norm before the step."""

    def __post_init__(self) -> None:
        require(self.name in ("rmsprop", "adam"), "optimizer.name", self.name, "give rmsprop or adam")
        require(self.schedule in ("constant", "linear"), "optimizer.schedule", self.schedule, "give constant or linear")
        values = {"learning_rate": self.learning_rate, "eps": self.eps, "max_grad_norm": self.max_grad_norm}
        _positive("optimizer", values)
        _fraction("optimizer", {"decay": self.decay}, one=False)


@dataclass(frozen=True)
class NetworkConfig:
    """The shared torso; the algorithm builds its heads on it."""

    torso: Literal["auto", "mlp", "conv"] = "auto"
    """`auto`: conv for images, mlp for vectors and for images too small for it."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the fully connected layers (after the convolutions, where there are any)."""
    activation: Literal["relu", "tanh"] = "relu"
    """Between fully connected layers; convolutions always use relu."""

    def __post_init__(self) -> None:
        require(self.torso in ("auto", "mlp", "conv"), "network.torso", self.torso, "give auto, mlp or conv")
        require(self.activation in ("relu", "tanh"), "network.activation", self.activation, "give relu or tanh")
        ok = len(self.hidden_sizes) > 0 and min(self.hidden_sizes) >= 1
        require(ok, "network.hidden_sizes", self.hidden_sizes, "give one width or more, each 1 or more")


@dataclass(frozen=True)
class ReplayConfig:
    """The replay memory, in the learner."""

    capacity: int = 100_000
    """Environment steps kept; the oldest segment is overwritten first."""
    start: int = 1_000
    """Replayed updates begin once this many environment steps are held."""

    def __post_init__(self) -> None:
        _at_least(1, "replay", {"capacity": self.capacity})
        _at_least(0, "replay", {"start": self.start})
        require(self.start <= self.capacity, "replay.start", self.start, f"at most replay.capacity ({self.capacity})")


@dataclass(frozen=True)
class AcerConfig:
    """ACER (arXiv 1611.01224)."""

    name: Literal["acer"] = "acer"
    """The algorithm's name."""
    gamma: float = 0.99
    """Discount per environment step."""
    unroll_length: int = 20
    """Steps per segment (k)."""
    replay_ratio: float = 4.0
    """Replayed per fresh steps; the updates after each fresh one are drawn from Poisson of this."""
    truncation_threshold: float = 10.0
    """Importance weights of the policy term are truncated here (c), the rest is corrected for bias."""
    trust_region_delta: float = 1.0
    """Bound on the linearised KL divergence from the average policy, per sample."""
    trust_region_space: Literal["probs", "logits"] = "probs"
    """The statistics the trust region is laid on: probabilities, as in the paper, or logits."""
    ema_decay: float = 0.99
    """The average policy moves by 1 minus this after every update (alpha)."""
    entropy_cost: float = 0.01
    """Weight of the entropy bonus."""
    q_cost: float = 0.5
    """Weight of the Q loss ½ (Q_ret − Q)²."""
    reward_clip: float = 0.0
    """Rewards are clipped to ± this before learning; 0: not clipped."""

    def __post_init__(self) -> None:
        require(self.name == "acer", "algorithm.name", self.name, "give acer")
        _fraction("algorithm", {"gamma": self.gamma, "ema_decay": self.ema_decay})
        _at_least(1, "algorithm", {"unroll_length": self.unroll_length})
        names = ("replay_ratio", "truncation_threshold", "entropy_cost", "q_cost", "reward_clip")
        _at_least(0, "algorithm", {name: getattr(self, name) for name in names})
        _positive("algorithm", {"trust_region_delta": self.trust_region_delta})
        spaces = ("probs", "logits")
        ok = self.trust_region_space in spaces
        require(ok, "algorithm.trust_region_space", self.trust_region_space, "give probs or logits")


@dataclass(frozen=True)
class EvaluationConfig:
    """Whole games with unclipped returns, in a process of their own."""

    every: int = 10_000
    """Environment steps between evaluations; 0: none."""
    episodes: int = 10
    """Episodes per evaluation."""
    environments: int = 10
    """Environments stepped together; each plays its own share of the episodes."""
    greedy: bool = True
    """Take the likeliest action; otherwise sample from the policy."""
    stall_steps: int = 0
    """Act at random for one step after this many steps without a reward, for games that wait for FIRE; 0: never."""

    def __post_init__(self) -> None:
        _at_least(1, "evaluation", {"episodes": self.episodes, "environments": self.environments})
        _at_least(0, "evaluation", {"every": self.every, "stall_steps": self.stall_steps})


@dataclass(frozen=True)
class CheckpointConfig:
    """When `weights.safetensors` is written besides the end of the run."""

    every: int = 100_000
    """Environment steps between saves; 0: only at the end."""

    def __post_init__(self) -> None:
        _at_least(0, "checkpoint", {"every": self.every})


@dataclass(frozen=True)
class LoggingConfig:
    """Metrics on disk."""

    every_seconds: float = 1.0
    """Seconds between two rows of one process."""

    def __post_init__(self) -> None:
        _positive("logging", {"every_seconds": self.every_seconds})


@dataclass(frozen=True)
class StopConfig:
    """What ends the run, whichever comes first."""

    env_steps: Annotated[int, tyro.conf.arg(aliases=["--steps"])] = 100_000
    """Environment steps in total."""
    minutes: float | None = None
    """Wall-clock minutes since the first environment step."""
    at_return: Annotated[float | None, tyro.conf.arg(aliases=["--until"])] = None
    """Mean return of one evaluation; the weights that reached it are the ones written."""

    def __post_init__(self) -> None:
        _at_least(1, "stop", {"env_steps": self.env_steps})
        if self.minutes is not None:
            _positive("stop", {"minutes": self.minutes})
        if self.at_return is not None:
            require(math.isfinite(self.at_return), "stop.at_return", self.at_return, "give a finite number")


@dataclass(frozen=True)
class RunConfig:
    """Everything that defines a run."""

    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    actors: ActorsConfig = field(default_factory=ActorsConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    algorithm: AcerConfig = field(default_factory=AcerConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    engine: Literal["local", "serial"] = "local"
    """Where roles run: `local` spawns processes, `serial` calls them in this one, reproducible to the bit."""
    seed: int = 0
    """The run's seed; every process derives its own from it."""
    out: str = ""
    """Folder of the run; empty: a new one under `runs/`."""
    load: str = ""
    """Weights file to start from; empty: random weights."""

    def __post_init__(self) -> None:
        require(self.engine in ("local", "serial"), "engine", self.engine, "give local or serial")
        require(0 <= self.seed < 2**31, "seed", self.seed, "give 0 to 2147483647")
        least = (self.learner.batch_size + self.actors.environments) * self.algorithm.unroll_length
        allowed = f"(learner.batch_size + actors.environments) * algorithm.unroll_length = {least} or more"
        require(self.replay.capacity >= least, "replay.capacity", self.replay.capacity, allowed)
        if self.stop.at_return is not None:
            require(
                self.evaluation.every > 0,
                "evaluation.every",
                0,
                "stop.at_return needs evaluations: give 1 or more, or stop.at_return None",
            )
