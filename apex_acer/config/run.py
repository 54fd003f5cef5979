"""The configuration of a run: the settings of what goes on beside the learning, and all sections together."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Literal

from apex_acer.config import rules
from apex_acer.config.algorithm import AlgorithmConfig, default_settings
from apex_acer.config.checks import at_least, positive, typed
from apex_acer.config.environment import ActorsConfig, EnvironmentConfig
from apex_acer.config.learning import LearnerConfig, NetworkConfig, OptimizerConfig, ReplayConfig
from apex_acer.system.errors import require


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
        at_least(1, "evaluation", self, "episodes", "environments")
        at_least(0, "evaluation", self, "every", "stall_steps", "video_every")


@dataclass(frozen=True)
class CheckpointConfig:
    """When `weights.safetensors` and the checkpoint for `apex-acer resume` are written, besides the end of the run."""

    every: int = 100_000
    """Environment steps between saves; 0: only at the end."""
    replay: bool = False
    """Also save the replay memory; without it a resumed run fills its memory again before it replays."""

    def __post_init__(self) -> None:
        typed("checkpoint", self)
        at_least(0, "checkpoint", self, "every")


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
        positive("logging", self, "every_seconds")
        at_least(0, "logging", self, "histograms_every_seconds")


@dataclass(frozen=True)
class SupervisionConfig:
    """Processes that die or hang are restarted, up to a limit, while the run continues."""

    hung_seconds: float = 60.0
    """Seconds without progress, for an actor without a step of its environments, after which a process is killed, unless it
    waits for another one."""
    evaluation_minutes: float = 30.0
    """Minutes without a step of its environments after which the evaluator is killed."""
    restarts: int = 10
    """Restarts of one process allowed within `window_minutes`; another death ends the run. 0: the first death does."""
    window_minutes: float = 10.0
    """Minutes after which a restart no longer counts."""

    def __post_init__(self) -> None:
        typed("supervision", self)
        positive("supervision", self, "hung_seconds", "evaluation_minutes", "window_minutes")
        at_least(0, "supervision", self, "restarts")


@dataclass(frozen=True)
class RayConfig:
    """Where the ray engine runs its roles, and how they share the machines."""

    address: str = ""
    """Cluster to join: `auto` (the one that this machine belongs to) or `host:port`; empty: a new one on this machine."""
    actor_cpus: float = 0.0
    """CPUs that Ray reserves for each actor; 0: an equal share of those available, at most 1."""
    compress: bool = False
    """Send observations compressed by LZ4, for a slow network between the machines."""

    def __post_init__(self) -> None:
        typed("ray", self)
        known = self.address in ("", "auto") or re.fullmatch(r"[\w.-]+:\d+", self.address) is not None
        require(known, "ray.address", self.address, "give auto, host:port or nothing")
        at_least(0, "ray", self, "actor_cpus")


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
        at_least(1, "stop", self, "env_steps")
        if self.minutes is not None:
            positive("stop", self, "minutes")
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
        self.check_together()

    def check_together(self) -> None:
        """Raises `ConfigError` if two sections do not fit each other."""
        algorithm, learner, actors, replay = self.algorithm, self.learner, self.actors, self.replay
        rules.algorithm_is_known(algorithm)
        rules.batches_are_whole_unrolls(algorithm, learner, actors)
        rules.replay_holds_a_batch(algorithm, learner, actors, replay)
        rules.cluster_is_rays(self.engine, self.ray.address, actors)
        rules.learners_share_updates(self.engine, learner, algorithm, actors, saves_replay=self.checkpoint.replay)
        rules.clients_have_one_actor(self.environment, self.engine, actors, algorithm)
        rules.replay_is_used(algorithm, replay)
        rules.network_remembers(algorithm, self.network)
        rules.temperature_is_used(algorithm, actors)
        rules.minibatches_are_equal(algorithm, learner, self.network)
        rules.loaded_replay_is_kept(algorithm, replay, learner)
        rules.target_is_measured(self.stop.at_return, self.evaluation.every)

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
        """Whether checkpoints hold the sequences that the learner has; without replay these are only a few."""
        return self.checkpoint.replay or bool(self.replay.load) or not self.algorithm.replay_ratio
