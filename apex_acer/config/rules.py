"""The rules across sections of a run: each function raises `ConfigError` if what it is given does not fit together."""

from __future__ import annotations

import dataclasses

from apex_acer.config.algorithm import AlgorithmConfig, NStepConfig, settings_classes
from apex_acer.config.checks import importable
from apex_acer.config.environment import ActorsConfig, EnvironmentConfig
from apex_acer.config.learning import LearnerConfig, NetworkConfig, ReplayConfig
from apex_acer.system.errors import require

# ── what an algorithm needs of the other sections ──


def algorithm_is_known(algorithm: AlgorithmConfig) -> None:
    """The settings are those of the algorithm that they name."""
    known = settings_classes()
    importable("algorithm.name", algorithm.name, "module:class", *known)
    kind = known.get(algorithm.name, type(algorithm))
    require(type(algorithm) is kind, "algorithm.name", algorithm.name, f"its settings are {kind.__name__}")


def replay_is_used(algorithm: AlgorithmConfig, replay: ReplayConfig) -> None:
    """Only an algorithm that replays has settings of replay."""
    for key in () if algorithm.has_replay else dataclasses.fields(replay):
        value = getattr(replay, key.name)
        require(value == key.default, f"replay.{key.name}", value, f"{algorithm.name} has no replay; leave it out")


def loaded_replay_is_kept(algorithm: AlgorithmConfig, replay: ReplayConfig, learner: LearnerConfig) -> None:
    """There is a memory, of one learner, for the replay that is loaded."""
    if replay.load:
        count, kept = learner.count, algorithm.replay_ratio > 0
        require(count == 1, "learner.count", count, "replay.load works with one learner only; give 1")
        require(kept, "replay.load", replay.load, "algorithm.replay_ratio 0 keeps no replay; leave it out")


def network_remembers(algorithm: AlgorithmConfig, network: NetworkConfig) -> None:
    """The network has an LSTM if the algorithm needs one, and none if the algorithm has no use for it."""
    name, lstm = algorithm.name, network.lstm
    if algorithm.recurrent:
        other = "give 1 or more, or algorithm.name apex_dqn"
        require(lstm > 0, "network.lstm", lstm, f"{name} learns to remember; {other}")
    elif algorithm.recurrent is not None:
        steps, others = f"{name} learns from single steps; give 0", f"{name} has no memory; give 0"
        require(lstm == 0, "network.lstm", lstm, steps if isinstance(algorithm, NStepConfig) else others)


def temperature_is_used(algorithm: AlgorithmConfig, actors: ActorsConfig) -> None:
    """Only a policy that is sampled from has a temperature."""
    for key in () if algorithm.has_softmax else ("temperature_high", "temperature_low"):
        value = getattr(actors, key)
        require(value == 1, f"actors.{key}", value, f"{algorithm.name} has no softmax; give 1")


def minibatches_are_equal(algorithm: AlgorithmConfig, learner: LearnerConfig, network: NetworkConfig) -> None:
    """The batch of each learner can be cut into equal minibatches: of its steps, or of its sequences if there is an LSTM."""
    if not algorithm.minibatches_key:
        return
    size, what = learner.batch_size // learner.count, "learner.batch_size"
    if not network.lstm:
        size, what = size * algorithm.unroll_length, f"{what} * algorithm.unroll_length"
    value = getattr(algorithm, algorithm.minibatches_key)
    require(size % value == 0, f"algorithm.{algorithm.minibatches_key}", value, f"give a divisor of {what} ({size})")


# ── sizes ──


def batches_are_whole_unrolls(algorithm: AlgorithmConfig, learner: LearnerConfig, actors: ActorsConfig) -> None:
    """If actors wait for each update, a batch is what they have sent."""
    if algorithm.waits:
        size, count = actors.environments * learner.count, learner.count
        per_learner = " * learner.count" if count > 1 else ""
        allowed = f"actors wait for each update, so give a multiple of actors.environments{per_learner}"
        require(learner.batch_size % size == 0, "learner.batch_size", learner.batch_size, f"{allowed} ({size})")


def replay_holds_a_batch(
    algorithm: AlgorithmConfig, learner: LearnerConfig, actors: ActorsConfig, replay: ReplayConfig
) -> None:
    """Each learner's part of replay holds a batch and an unroll."""
    if algorithm.replay_ratio:
        each = (learner.batch_size + actors.environments) * algorithm.unroll_length
        several = " for each learner" if learner.count > 1 else ""
        steps = f"(learner.batch_size + actors.environments) * algorithm.unroll_length = {each}"
        enough = replay.capacity >= each * learner.count
        require(enough, "replay.capacity", replay.capacity, f"give {steps}{several} or more")


# ── engines ──


def cluster_is_rays(engine: str, address: str, actors: ActorsConfig) -> None:
    """Only Ray joins a cluster, whose cores this machine cannot count."""
    if address:
        require(engine == "ray", "ray.address", address, "give it with engine ray only")
        fixed = "give the number of actors, which cannot be chosen by this machine's cores for a cluster"
        require(actors.count > 0, "actors.count", 0, fixed)


def learners_share_updates(
    engine: str, learner: LearnerConfig, algorithm: AlgorithmConfig, actors: ActorsConfig, *, saves_replay: bool
) -> None:
    """Several learners have an algorithm and an engine that allow it, equal parts of the batch, actors, and devices."""
    key, count, batch_size = "learner.count", learner.count, learner.batch_size
    if count == 1:
        return
    require(engine == "ray", key, count, f"engine {engine} has one learner; give engine ray")
    require(batch_size % count == 0, key, count, f"give a divisor of learner.batch_size ({batch_size})")
    enough = f"give at most actors.count ({actors.count}): each learner has actors of its own"
    require(count <= (actors.count or count), key, count, enough)
    named = f"learner.device {learner.device} is one device for all; give auto, cpu or cuda"
    require(":" not in learner.device, key, count, named)
    require(not saves_replay, key, count, "checkpoint.replay works with one learner only; give 1")
    require(algorithm.shares_updates, key, count, f"{algorithm.name} has one learner; give 1")


def clients_have_one_actor(
    environment: EnvironmentConfig, engine: str, actors: ActorsConfig, algorithm: AlgorithmConfig
) -> None:
    """Remote clients are served by one actor of the local engine, which waits for none of them."""
    if not environment.is_remote:
        return
    require(engine == "local", "engine", engine, "environment.id remote needs engine local")
    require(actors.count <= 1, "actors.count", actors.count, "one actor serves all remote clients; give 1")
    each = "an unroll has the steps of one remote client; give 1"
    require(actors.environments == 1, "actors.environments", actors.environments, each)
    waits = "remote clients do not wait for each other; give True"
    require(not algorithm.waits, "algorithm.pipelined", False, waits)


# ── stopping ──


def target_is_measured(at_return: float | None, every: int) -> None:
    """A target (`stop.at_return`) needs evaluations, which there are `evaluation.every` so many steps."""
    needed = "stop.at_return needs evaluations: give 1 or more, or stop.at_return None"
    require(at_return is None or every > 0, "evaluation.every", every, needed)
