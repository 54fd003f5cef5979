"""Settings of evaluations, checkpoints, logging, restarts, the Ray engine and the end of a run."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from apex_acer.config.checks import at_least, importable, positive, typed
from apex_acer.system.errors import require

WEIGHTS = ".safetensors"  # suffix of weights files


@dataclass(frozen=True)
class EvaluationConfig:
    """Evaluations: whole episodes with unclipped returns, played by a separate process."""

    every: int = 10_000
    """Environment steps between evaluations; 0: no evaluations."""
    episodes: int = 10
    """Episodes per evaluation."""
    environments: int = 10
    """Environments stepped together; each plays an equal share of the episodes."""
    greedy: bool = True
    """Take the most likely action; False: sample from the policy."""
    video_every: int = 0
    """Evaluations between two videos of an episode, in `videos/` of the run; 0: none. Needs the extra `video`."""
    opponent: str = "random"
    """Opponent in games of two players who take turns: `random`, `module:function` with the observation and a source of
    random numbers as arguments and an action as result, or a weights file, whose policy is sampled."""

    def __post_init__(self) -> None:
        typed("evaluation", self)
        at_least(1, "evaluation", self, "episodes", "environments")
        at_least(0, "evaluation", self, "every", "video_every")
        if not self.opponent_file:
            importable("evaluation.opponent", self.opponent, f"module:function or a {WEIGHTS} file", "random")

    @property
    def opponent_file(self) -> str:
        """`opponent` if it is a weights file; otherwise empty."""
        return self.opponent if self.opponent.endswith(WEIGHTS) else ""


@dataclass(frozen=True)
class CheckpointConfig:
    """Saves of `weights.safetensors` and of the checkpoint for `apex-acer resume`; the end of a run saves both, too."""

    every: int = 100_000
    """Environment steps between saves; 0: only at the end."""
    replay: bool = False
    """Save the replay memory, too; without it a resumed run fills its memory again before it replays."""

    def __post_init__(self) -> None:
        typed("checkpoint", self)
        at_least(0, "checkpoint", self, "every")


LogLevel = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True)
class LoggingConfig:
    """Metrics, `log.txt` and experiment trackers."""

    every_seconds: float = 1.0
    """Seconds between two rows of metrics of a process."""
    histograms_every_seconds: float = 0.0
    """Seconds between two TensorBoard histograms of each layer's weights and gradients; 0: none."""
    level: LogLevel = "info"
    """Lowest level of the lines in `log.txt`."""
    trackers: tuple[Literal["wandb", "mlflow"], ...] = ()
    """Experiment trackers for configuration, metrics and result (docs/dashboard.md); each needs the extra of its
    name."""
    tracker_weights: bool = False
    """Give the trackers the final weights file, too."""

    def __post_init__(self) -> None:
        typed("logging", self)
        positive("logging", self, "every_seconds")
        at_least(0, "logging", self, "histograms_every_seconds")


@dataclass(frozen=True)
class SupervisionConfig:
    """Restarts of processes that die or hang, while the run continues."""

    hung_seconds: float = 60.0
    """Seconds without progress (of an actor: without an environment step) after which a process is killed, unless it
    waits for another process."""
    evaluation_minutes: float = 30.0
    """Minutes without an environment step after which the evaluator is killed; `apex-acer evaluate`, `play` and a sweep's
    final games end with an error."""
    restarts: int = 10
    """Restarts of one process allowed within `window_minutes`; one more death ends the run."""
    window_minutes: float = 10.0
    """Minutes for which a restart counts."""

    def __post_init__(self) -> None:
        typed("supervision", self)
        positive("supervision", self, "hung_seconds", "evaluation_minutes", "window_minutes")
        at_least(0, "supervision", self, "restarts")


@dataclass(frozen=True)
class RayConfig:
    """The machines of the ray engine, and how its processes share them."""

    address: str = ""
    """Ray cluster to join: `auto` (the cluster of this machine) or `host:port`; empty: start one on this machine."""
    actor_cpus: float = 0.0
    """CPUs that Ray reserves for each actor; 0: an equal share of those available, at most 1."""
    compress: bool = False
    """Compress observations with LZ4, for a slow network between the machines."""

    def __post_init__(self) -> None:
        typed("ray", self)
        known = self.address in ("", "auto") or re.fullmatch(r"[\w.-]+:\d+", self.address) is not None
        require(known, "ray.address", self.address, "give auto, host:port or nothing")
        at_least(0, "ray", self, "actor_cpus")


@dataclass(frozen=True)
class StopConfig:
    """Stop conditions; the first one that is met ends the run."""

    env_steps: int = 100_000
    """Environment steps in total."""
    minutes: float | None = None
    """Wall-clock minutes since the first environment step; None: no limit."""
    at_return: float | None = None
    """Target for the mean return of an evaluation, confirmed by a second evaluation of as many other episodes; the
    weights that reach it are kept. None: no target."""

    def __post_init__(self) -> None:
        typed("stop", self)
        at_least(1, "stop", self, "env_steps")
        if self.minutes is not None:
            positive("stop", self, "minutes")
        if self.at_return is not None:
            require(math.isfinite(self.at_return), "stop.at_return", self.at_return, "give a finite number")
