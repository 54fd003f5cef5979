"""The configuration of a run: all sections together, and rules across them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Literal

from apex_acer.config.algorithm import AlgorithmConfig, NStepConfig, settings_classes
from apex_acer.config.checks import importable, typed
from apex_acer.config.environment import ActorsConfig, EnvironmentConfig, SelfPlayConfig
from apex_acer.config.learning import LearnerConfig, NetworkConfig, OptimizerConfig, ReplayConfig
from apex_acer.config.operation import (
    CheckpointConfig,
    EvaluationConfig,
    LoggingConfig,
    RayConfig,
    StopConfig,
    SupervisionConfig,
)
from apex_acer.system.errors import require


@dataclass(frozen=True)
class RunConfig:
    """The configuration of a run."""

    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    actors: ActorsConfig = field(default_factory=ActorsConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    algorithm: AlgorithmConfig = field(default_factory=lambda: settings_classes()["acer"]())
    self_play: SelfPlayConfig = field(default_factory=SelfPlayConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    supervision: SupervisionConfig = field(default_factory=SupervisionConfig)
    ray: RayConfig = field(default_factory=RayConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    engine: Literal["local", "serial", "ray"] = "local"
    """`local`: actors, learner and evaluator each in a process; `serial`: all in this process, reproducible to the bit;
    `ray`: on one machine or many (needs the extra `ray`)."""
    seed: int = 0
    """Random seed, from which every process derives its own."""
    schedule_steps: int = 0
    """Environment steps at which the learning rate and the importance exponent are final, and of which
    `algorithm.epsilon_fraction` is a fraction; 0: `stop.env_steps`."""
    out: str = ""
    """Folder of the run; empty: a new one in `runs/`."""
    load: str = ""
    """Weights file to start from; empty: random initial weights."""

    def __post_init__(self) -> None:
        typed("", self)
        require(0 <= self.seed < 2**31, "seed", self.seed, "give 0 to 2147483647")
        require(self.schedule_steps >= 0, "schedule_steps", self.schedule_steps, "give 0 or more")
        self.check_together()

    def check_together(self) -> None:
        """Raises `ConfigError` if two sections do not fit each other."""
        algorithm_is_known(self)
        batches_are_whole_unrolls(self)
        replay_holds_a_batch(self)
        cluster_is_rays(self)
        learners_share_updates(self)
        clients_have_one_actor(self)
        sections_are_used(self)
        hidden_layers_are_there(self)
        lstm_is_used(self)
        layers_have_one_norm(self)
        temperature_is_used(self)
        minibatches_are_equal(self)
        members_play_whole_shares(self)
        loaded_replay_is_kept(self)
        target_is_measured(self)

    @property
    def schedule_end(self) -> int:
        """Environment steps at which schedules reach their final values."""
        return self.schedule_steps or self.stop.env_steps

    @property
    def has_schedule(self) -> bool:
        """Whether the learning rate, the importance exponent or exploration changes during the run."""
        replay = self.replay
        anneals = replay.importance_exponent != replay.importance_exponent_final
        prioritized = replay.sampling == "prioritized" and anneals
        return self.optimizer.schedule != "constant" or prioritized or self.algorithm.has_schedule

    @property
    def max_unanswered(self) -> int:
        """Maximum number of an actor's unrolls in flight."""
        return 1 if self.algorithm.waits else self.actors.max_unanswered

    @property
    def saves_replay(self) -> bool:
        """Whether checkpoints contain the learner's sequences, which are few without replay."""
        return self.checkpoint.replay or bool(self.replay.load) or not self.algorithm.replay_ratio


# ── rules across sections: each raises `ConfigError` if a run breaks it ──


def algorithm_is_known(run: RunConfig) -> None:
    """The section `algorithm` has the settings class of the algorithm that it names."""
    name, known = run.algorithm.name, settings_classes()
    importable("algorithm.name", name, "module:class", *known)
    cls = known.get(name, type(run.algorithm))
    require(type(run.algorithm) is cls, "algorithm.name", name, f"its settings are {cls.__name__}")


def batches_are_whole_unrolls(run: RunConfig) -> None:
    """If actors wait for each update, a batch consists of whole unrolls of each learner's actors."""
    if run.algorithm.waits:
        size, batch_size = run.actors.environments * run.learner.count, run.learner.batch_size
        multiple = f"a multiple of actors.environments * learner.count ({size})"
        allowed = f"actors wait for each update, so give {multiple}"
        require(batch_size % size == 0, "learner.batch_size", batch_size, allowed)


def replay_holds_a_batch(run: RunConfig) -> None:
    """Each learner's part of replay holds a batch and an unroll."""
    if run.algorithm.replay_ratio:
        steps = (run.learner.batch_size + run.actors.environments) * run.algorithm.unroll_length
        formula = f"(learner.batch_size + actors.environments) * algorithm.unroll_length = {steps}"
        several = " for each learner" if run.learner.count > 1 else ""
        capacity = run.replay.capacity
        require(capacity >= steps * run.learner.count, "replay.capacity", capacity, f"give {formula}{several} or more")


def cluster_is_rays(run: RunConfig) -> None:
    """Only Ray joins a cluster, whose cores this machine cannot count."""
    if address := run.ray.address:
        require(run.engine == "ray", "ray.address", address, "give it with engine ray only")
        allowed = "give the number of actors, which cannot be chosen by this machine's cores for a cluster"
        require(run.actors.count > 0, "actors.count", 0, allowed)


def learners_share_updates(run: RunConfig) -> None:
    """Several learners have an algorithm and an engine that allow it, equal parts of the batch, actors, and devices."""
    learner, actors = run.learner, run.actors.count
    count, batch_size = learner.count, learner.batch_size
    if count == 1:
        return
    keeps_replay = run.checkpoint.replay or bool(run.replay.load)
    requirements = {
        f"engine {run.engine} has one learner; give engine ray": run.engine == "ray",
        f"give a divisor of learner.batch_size ({batch_size})": batch_size % count == 0,
        f"give at most actors.count ({actors}): each learner has actors of its own": count <= (actors or count),
        f"learner.device {learner.device} is one device for all; give auto, cpu or cuda": ":" not in learner.device,
        "checkpoint.replay and replay.load work with one learner only; give 1": not keeps_replay,
        f"{run.algorithm.name} has one learner; give 1": run.algorithm.shares_updates,
        "algorithm.batch_norm needs the moments of the whole batch; give 1": not _has_batch_norm(run),
    }
    for allowed, is_met in requirements.items():
        require(is_met, "learner.count", count, allowed)


def clients_have_one_actor(run: RunConfig) -> None:
    """Remote clients are served by one actor of the local engine, which waits for none of them."""
    actors = run.actors
    if run.environment.is_remote:
        require(run.engine == "local", "engine", run.engine, "environment.id remote needs engine local")
        require(actors.count <= 1, "actors.count", actors.count, "one actor serves all remote clients; give 1")
        allowed = "an unroll has the steps of one remote client; give 1"
        require(actors.environments == 1, "actors.environments", actors.environments, allowed)
        evaluation, allowed = run.evaluation, "clients play the evaluation's games; leave it out or give remote.local"
        by_clients = evaluation.every > 0 and not run.environment.remote.local
        require(not (by_clients and evaluation.video_every), "evaluation.video_every", evaluation.video_every, allowed)
        waits, name = run.algorithm.waits, run.algorithm.name
        if hasattr(run.algorithm, "pipelined"):
            require(not waits, "algorithm.pipelined", False, "remote clients do not wait for each other; give True")
        require(not waits, "environment.id", "remote", f"remote clients do not wait for updates, as {name}'s actors do")


def sections_are_used(run: RunConfig) -> None:
    """Only an algorithm that replays has settings of replay, and only one that has gradients those of the optimizer."""
    used = {"replay": run.algorithm.has_replay, "optimizer": run.algorithm.has_optimizer}
    for section, is_used in used.items():
        settings = getattr(run, section)
        for key in () if is_used else dataclasses.fields(settings):
            value = getattr(settings, key.name)
            allowed = f"{run.algorithm.name} has no {section}; leave it out"
            require(value == key.default, f"{section}.{key.name}", value, allowed)


def hidden_layers_are_there(run: RunConfig) -> None:
    """The network has hidden layers, unless the algorithm needs none."""
    allowed = f"{run.algorithm.name} needs a hidden layer; give one width or more, each 1 or more"
    are_there = len(run.network.hidden_sizes) > 0 or not run.algorithm.needs_hidden_layer
    require(are_there, "network.hidden_sizes", run.network.hidden_sizes, allowed)


def lstm_is_used(run: RunConfig) -> None:
    """The network has an LSTM if the algorithm needs one, and none if the algorithm cannot use it."""
    algorithm, lstm = run.algorithm, run.network.lstm
    if algorithm.recurrent:
        allowed = f"{algorithm.name} needs an LSTM; give 1 or more, or algorithm.name apex_dqn"
        require(lstm > 0, "network.lstm", lstm, allowed)
    elif algorithm.recurrent is not None:
        why = "learns from single steps; give 0" if isinstance(algorithm, NStepConfig) else "has no memory; give 0"
        require(lstm == 0, "network.lstm", lstm, f"{algorithm.name} {why}")


def layers_have_one_norm(run: RunConfig) -> None:
    """Layers are not normalised twice."""
    is_one = not (run.network.layer_norm and _has_batch_norm(run))
    require(is_one, "network.layer_norm", True, "algorithm.batch_norm normalises the same layers; give one of them")


def _has_batch_norm(run: RunConfig) -> bool:
    return bool(getattr(run.algorithm, "batch_norm", False))


def temperature_is_used(run: RunConfig) -> None:
    """Only a softmax policy has a temperature."""
    for key in () if run.algorithm.has_softmax else ("temperature_high", "temperature_low"):
        value = getattr(run.actors, key)
        require(value == 1, f"actors.{key}", value, f"{run.algorithm.name} has no softmax; give 1")


def minibatches_are_equal(run: RunConfig) -> None:
    """Each learner's batch divides into equal minibatches: of its steps, or of its sequences if there is an LSTM."""
    if key := run.algorithm.minibatches_key:
        size, what = run.learner.batch_size // run.learner.count, "learner.batch_size"
        if not run.network.lstm:
            size, what = size * run.algorithm.unroll_length, f"{what} * algorithm.unroll_length"
        value = getattr(run.algorithm, key)
        require(size % value == 0, f"algorithm.{key}", value, f"give a divisor of {what} ({size})")


def members_play_whole_shares(run: RunConfig) -> None:
    """Each actor's environments are shared equally by members that play several episodes."""
    each, num = getattr(run.algorithm, "episodes_per_member", 1), run.actors.environments
    allowed = f"give a divisor of actors.environments ({num})"
    require(num % each == 0, "algorithm.episodes_per_member", each, allowed)


def loaded_replay_is_kept(run: RunConfig) -> None:
    """A run that loads a replay memory keeps replay."""
    allowed = "algorithm.replay_ratio 0 keeps no replay; leave it out"
    require(not run.replay.load or run.algorithm.replay_ratio > 0, "replay.load", run.replay.load, allowed)


def target_is_measured(run: RunConfig) -> None:
    """A target return needs evaluations."""
    allowed = "stop.at_return needs evaluations: give 1 or more, or stop.at_return None"
    has_evaluations = run.evaluation.every > 0
    require(run.stop.at_return is None or has_evaluations, "evaluation.every", run.evaluation.every, allowed)
