"""The configuration of a run: the settings of evaluation, checkpoints, logging and stopping, and all sections together."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from apex_acer.config.algorithm import AlgorithmConfig
from apex_acer.config.algorithms import default_settings, settings_classes
from apex_acer.config.checks import at_least, importable, positive, require, typed
from apex_acer.config.cluster import RayConfig
from apex_acer.config.environment import ActorsConfig, EnvironmentConfig
from apex_acer.config.learning import LearnerConfig, NetworkConfig, OptimizerConfig, ReplayConfig
from apex_acer.config.supervision import SupervisionConfig


@dataclass(frozen=True)
class EvaluationConfig:
    """Evaluations: whole games with unclipped returns, played by a separate process."""

    every: int = 10_000
    """Environment steps between evaluations; 0: none."""
    episodes: int = 10
    """Episodes per evaluation."""
    environments: int = 10
    """Environments stepped together; each plays its own share of the episodes."""
    greedy: bool = True
    """Take the likeliest action; otherwise sample from the policy."""
    stall_steps: int = 0
    """Take one random action after this many steps without a reward, for games that wait for FIRE; 0: never."""
    video_every: int = 0
    """Evaluations between two videos of a game, in `videos/` of the run's folder; 0: none. Needs the extra `video`."""

    def __post_init__(self) -> None:
        typed("evaluation", self)
        at_least(1, "evaluation", {"episodes": self.episodes, "environments": self.environments})
        never = {"every": self.every, "stall_steps": self.stall_steps, "video_every": self.video_every}
        at_least(0, "evaluation", never)


@dataclass(frozen=True)
class CheckpointConfig:
    """When `weights.safetensors` and the checkpoint for `apex-acer resume` are written, besides the end of the run."""

    every: int = 100_000
    """Environment steps between saves; 0: only at the end."""
    replay: bool = False
    """Also save the replay memory; without it a resumed run fills its memory again before it replays."""

    def __post_init__(self) -> None:
        typed("checkpoint", self)
        at_least(0, "checkpoint", {"every": self.every})


LogLevel = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True)
class LoggingConfig:
    """Metrics and `log.txt`."""

    every_seconds: float = 1.0
    """Seconds between two rows of metrics of a process."""
    histograms_every_seconds: float = 0.0
    """Seconds between two histograms of each layer's weights and gradients in TensorBoard; 0: none."""
    level: LogLevel = "info"
    """Lowest severity of the lines in `log.txt`."""
    trackers: tuple[Literal["wandb", "mlflow"], ...] = ()
    """Trackers that get the configuration, every row of metrics and the result (docs/dashboard.md); each needs the extra of
    its name."""
    tracker_weights: bool = False
    """Also give the trackers the weights file at the end."""

    def __post_init__(self) -> None:
        typed("logging", self)
        positive("logging", {"every_seconds": self.every_seconds})
        at_least(0, "logging", {"histograms_every_seconds": self.histograms_every_seconds})


@dataclass(frozen=True)
class StopConfig:
    """The conditions that end the run; the first one to be met does."""

    env_steps: int = 100_000
    """Environment steps in total."""
    minutes: float | None = None
    """Wall-clock minutes since the first environment step."""
    at_return: float | None = None
    """Target for the mean return of an evaluation, which as many other games must confirm; the weights that reach it are
    those that are saved. None: no target."""

    def __post_init__(self) -> None:
        typed("stop", self)
        at_least(1, "stop", {"env_steps": self.env_steps})
        if self.minutes is not None:
            positive("stop", {"minutes": self.minutes})
        if self.at_return is not None:
            require(math.isfinite(self.at_return), "stop.at_return", self.at_return, "give a finite number")


@dataclass(frozen=True)
class RunConfig:
    """The configuration of a run."""

    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    actors: ActorsConfig = field(default_factory=ActorsConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    algorithm: AlgorithmConfig = field(default_factory=default_settings)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    supervision: SupervisionConfig = field(default_factory=SupervisionConfig)
    ray: RayConfig = field(default_factory=RayConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    engine: Literal["local", "serial", "ray"] = "local"
    """Where actors, learner and evaluator run: `local` in a process each, `serial` in turn in this process, reproducible to
    the bit, and `ray` on one machine or many, which needs the extra `ray`."""
    seed: int = 0
    """The run's seed, from which every process derives its own."""
    schedule_steps: int = 0
    """Environment steps at which a linear learning rate and the importance exponent reach their final values; 0:
    `stop.env_steps`."""
    out: str = ""
    """The run's folder; empty: a new one in `runs/`."""
    load: str = ""
    """Weights file to start from; empty: random weights."""

    def __post_init__(self) -> None:
        typed("", self)
        require(0 <= self.seed < 2**31, "seed", self.seed, "give 0 to 2147483647")
        require(self.schedule_steps >= 0, "schedule_steps", self.schedule_steps, "give 0 or more")
        self._check_algorithm()
        self._check_memory()
        self._check_cluster()
        self._check_remote()
        self.algorithm.require_fit(self)
        has_replay = self.algorithm.replay_ratio > 0 or not self.replay.load
        require(has_replay, "replay.load", self.replay.load, "algorithm.replay_ratio 0 keeps no replay; leave it out")
        needed = "stop.at_return needs evaluations: give 1 or more, or stop.at_return None"
        require(self.stop.at_return is None or self.evaluation.every > 0, "evaluation.every", 0, needed)

    @property
    def schedule_end(self) -> int:
        """Environment steps at which schedules end."""
        return self.schedule_steps or self.stop.env_steps

    @property
    def has_schedule(self) -> bool:
        """Whether any setting changes during the run."""
        replay = self.replay
        anneals = replay.importance_exponent != replay.importance_exponent_final
        return self.optimizer.schedule != "constant" or (replay.sampling == "prioritized" and anneals)

    @property
    def max_unanswered(self) -> int:
        """Unrolls that an actor may have unanswered before it waits for the learner."""
        return 1 if self.algorithm.waits else self.actors.max_unanswered

    @property
    def saves_replay(self) -> bool:
        """Whether checkpoints hold the segments that the learner has; without replay these are only a few."""
        return self.checkpoint.replay or bool(self.replay.load) or not self.algorithm.replay_ratio

    def _check_algorithm(self) -> None:
        given, known = self.algorithm, settings_classes()
        importable("algorithm.name", given.name, "module:class", *known)
        kind = known.get(given.name, type(given))
        require(type(given) is kind, "algorithm.name", given.name, f"its settings are {kind.__name__}")

    def _check_memory(self) -> None:
        batch_size, environments, count = self.learner.batch_size, self.actors.environments, self.learner.count
        if self.algorithm.waits:
            per_learner = " * learner.count" if count > 1 else ""
            allowed = f"actors wait for each update, so give a multiple of actors.environments{per_learner}"
            whole = batch_size % (environments * count) == 0
            require(whole, "learner.batch_size", batch_size, f"{allowed} ({environments * count})")
        if self.algorithm.replay_ratio:
            each = (batch_size + environments) * self.algorithm.unroll_length
            several = " for each learner" if count > 1 else ""
            steps = f"(learner.batch_size + actors.environments) * algorithm.unroll_length = {each}"
            allowed = f"give {steps}{several} or more"
            require(self.replay.capacity >= each * count, "replay.capacity", self.replay.capacity, allowed)

    def _check_remote(self) -> None:
        if not self.environment.is_remote:
            return
        actors = self.actors
        require(self.engine == "local", "engine", self.engine, "environment.id remote needs engine local")
        require(actors.count <= 1, "actors.count", actors.count, "one actor serves all remote clients; give 1")
        each = "an unroll has the steps of one remote client; give 1"
        require(actors.environments == 1, "actors.environments", actors.environments, each)
        waits = "remote clients do not wait for each other; give True"
        require(not self.algorithm.waits, "algorithm.pipelined", False, waits)

    def _check_cluster(self) -> None:
        count, several = self.learner.count, "learner.count"
        if self.ray.address:
            require(self.engine == "ray", "ray.address", self.ray.address, "give it with engine ray only")
            fixed = "give the number of actors, which cannot be chosen by this machine's cores for a cluster"
            require(self.actors.count > 0, "actors.count", 0, fixed)
        if count == 1:
            return
        require(self.engine == "ray", several, count, f"engine {self.engine} has one learner; give engine ray")
        batch_size = self.learner.batch_size
        require(batch_size % count == 0, several, count, f"give a divisor of learner.batch_size ({batch_size})")
        enough = f"give at most actors.count ({self.actors.count}): each learner has actors of its own"
        require(count <= (self.actors.count or count), several, count, enough)
        named = f"learner.device {self.learner.device} is one device for all; give auto, cpu or cuda"
        require(":" not in self.learner.device, several, count, named)
        require(not self.checkpoint.replay, several, count, "checkpoint.replay works with one learner only; give 1")
        require(not self.replay.load, several, count, "replay.load works with one learner only; give 1")
