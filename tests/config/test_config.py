from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apex_acer.algorithms.acer.settings import AcerConfig
from apex_acer.algorithms.dqn.settings import ApexDqnConfig
from apex_acer.config import (
    ALGORITHMS,
    ActorsConfig,
    AlgorithmConfig,
    AtariConfig,
    EnvironmentConfig,
    NetworkConfig,
    RayConfig,
    RunConfig,
    StopConfig,
    SupervisionConfig,
)
from apex_acer.config.runfile import from_dict, load_run
from tests.conftest import config_error

NAN, INFINITE = float("nan"), float("inf")

REFUSED: list[tuple[str, Any, str]] = [
    ("environment.id", "", "a gymnasium id"),
    ("environment.kwargs", "gravity = 1", "one JSON object"),
    ("environment.kwargs", "[]", "one JSON object"),
    ("environment.kwargs", {"since": datetime.date(2020, 1, 1)}, "values that JSON has"),
    ("environment.kwargs", {"limit": INFINITE}, "values that JSON has"),
    ("environment.kwargs", {3: 4}, "values that JSON has"),
    ("environment.wrappers", ["module.function"], "module:function"),
    ("environment.wrappers", ["a:b", "a:b:c"], "module:function"),
    ("environment.stack", 0, "1 or more"),
    ("environment.channels", "middle", "auto, first or last"),
    ("environment.atari.frame_skip", 0, "1 or more"),
    ("environment.atari.screen_size", 0, "1 to 1024"),
    ("environment.atari.screen_size", 10**5, "1 to 1024"),
    ("environment.atari.training_frames", 0, "1 or more"),
    ("environment.atari.noop_max", -1, "0 or more"),
    ("environment.atari.sticky_actions", 1.5, "0 to 1"),
    ("environment.atari.sticky_actions", -0.1, "0 to 1"),
    ("environment.remote.listen", "7777", "ADDRESS:PORT"),
    ("environment.remote.listen", "127.0.0.1:65536", "a port from 1 to 65535"),
    ("environment.remote.listen", "0.0.0.0:7777", "beyond this machine, give certificate and private_key for TLS"),
    ("environment.remote.listen", "example.org:7777", "beyond this machine"),
    ("environment.remote.private_key", "key.pem", "both certificate and private_key"),
    ("environment.remote.clients", 0, "1 to 4096"),
    ("environment.remote.clients", 5000, "1 to 4096"),
    ("environment.remote.grace_s", -1.0, "0 or more"),
    ("environment.remote.observation_shape", [4, 0], "numbers of 1 or more"),
    ("environment.remote.observation_dtype", "float16", "bool, uint8, "),
    ("environment.remote.num_actions", -1, "0 or more"),
    ("environment.remote.num_choices", [3, 0], "numbers of 1 or more"),
    ("environment.remote.observations", "[]", "one JSON object"),
    ("environment.remote.observations", {"arm": {"shape": [0], "dtype": "float32"}}, "for each name"),
    ("environment.remote.observations", {"arm": {"shape": [2], "dtype": "text"}}, "for each name"),
    ("environment.remote.observations", {"room": {"n": 0}}, "for each name"),
    ("environment.remote.observations", {"": {"n": 2}}, "for each name"),
    ("environment.remote.action_high", [1.0], "above its action_low"),
    ("environment.remote.action_high", [1e300], "a finite bound"),
    ("actors.count", -1, "0 or more"),
    ("actors.environments", 0, "1 or more"),
    ("actors.weights_every", 0, "1 or more"),
    ("actors.max_unanswered", 0, "1 or more"),
    ("actors.threads", -1, "0 to 1024"),
    ("actors.threads", 10**9, "0 to 1024"),
    ("actors.temperature_low", 0.0, "above 0"),
    ("actors.temperature_high", INFINITE, "above 0"),
    ("actors.device", "gpu", "cpu, cuda, cuda:N or auto"),
    ("replay.device", "cuda", "learner or cpu"),
    ("learner.device", "gpu", "cpu, cuda, cuda:N or auto"),
    ("learner.device", "cuda:first", "cpu, cuda, cuda:N or auto"),
    ("learner.device", "cpu:0", "cpu, cuda, cuda:N or auto"),
    ("learner.precision", "float16", "auto, float32 or bfloat16"),
    ("learner.batch_size", 0, "1 or more"),
    ("learner.max_skipped_updates", 0, "1 or more"),
    ("learner.threads", -2, "0 to 1024"),
    ("learner.threads", 1025, "0 to 1024"),
    ("optimizer.name", "sgd", "rmsprop, rmsprop_tf, adam or module:function"),
    ("optimizer.name", "my package:make", "module:function"),
    ("optimizer.schedule", "cosine", "constant or linear"),
    ("optimizer.learning_rate", -1e-3, "above 0"),
    ("optimizer.learning_rate", 0.0, "above 0"),
    ("optimizer.learning_rate", NAN, "above 0"),
    ("optimizer.final_fraction", 1.5, "0 to 1"),
    ("optimizer.eps", 0.0, "above 0"),
    ("optimizer.max_grad_norm", -1.0, "above 0"),
    ("optimizer.decay", 1.0, "0 to 1, below 1"),
    ("network.torso", "lstm", "auto, mlp, conv or module:class"),
    ("network.torso", "my_package.", "module:class"),
    ("network.convolutions", "resnet", "nature or a3c"),
    ("network.lstm", -1, "0 or more"),
    ("network.activation", "gelu", "relu or tanh"),
    ("network.hidden_sizes", [], "each 1 or more"),
    ("network.hidden_sizes", [64, 0], "each 1 or more"),
    ("replay.capacity", 0, "1 or more"),
    ("replay.start", -1, "0 or more"),
    ("replay.start", 100_001, "replay.capacity (100000)"),
    ("replay.sampling", "newest", "uniform or prioritized"),
    ("replay.priority_exponent", 1.5, "0 to 1"),
    ("replay.importance_exponent", -0.1, "0 to 1"),
    ("replay.importance_exponent_final", NAN, "0 to 1"),
    ("algorithm.name", "a2c", f"{', '.join(ALGORITHMS)} or module:class"),
    ("algorithm.gamma", 1.01, "0 to 1"),
    ("algorithm.gamma", NAN, "0 to 1"),
    ("algorithm.ema_decay", -0.5, "0 to 1"),
    ("algorithm.unroll_length", 0, "1 or more"),
    ("algorithm.burn_in", -1, "0 or more"),
    ("algorithm.burn_in", 20, "less than algorithm.unroll_length (20)"),
    ("algorithm.terminal_penalty", -1.0, "0 or more"),
    ("algorithm.replay_ratio", -1.0, "0 or more"),
    ("algorithm.truncation_threshold", -1.0, "0 or more"),
    ("algorithm.entropy_cost", INFINITE, "0 or more"),
    ("algorithm.q_cost", -0.5, "0 or more"),
    ("algorithm.reward_clip", -1.0, "0 or more"),
    ("algorithm.trust_region_delta", 0.0, "above 0"),
    ("evaluation.every", -1, "0 or more"),
    ("evaluation.episodes", 0, "1 or more"),
    ("evaluation.environments", 0, "1 or more"),
    ("evaluation.stall_steps", -1, "0 or more"),
    ("evaluation.video_every", -1, "0 or more"),
    ("learner.callback", "module", "module:function"),
    ("checkpoint.every", -1, "0 or more"),
    ("logging.every_seconds", 0.0, "above 0"),
    ("logging.histograms_every_seconds", -1.0, "0 or more"),
    ("learner.count", 0, "1 or more"),
    ("learner.count", 2, "engine local has one learner; give engine ray"),
    ("ray.address", "ray://head:10001", "auto, host:port or nothing"),
    ("ray.address", "auto", "with engine ray only"),
    ("ray.actor_cpus", -0.5, "0 or more"),
    ("supervision.hung_seconds", 0.0, "above 0"),
    ("supervision.evaluation_minutes", INFINITE, "above 0"),
    ("supervision.restarts", -1, "0 or more"),
    ("supervision.window_minutes", -1.0, "above 0"),
    ("stop.env_steps", 0, "1 or more"),
    ("stop.minutes", 0.0, "above 0"),
    ("stop.minutes", -1.0, "above 0"),
    ("stop.minutes", INFINITE, "above 0, and finite"),
    ("stop.minutes", "soon", "give float or None"),
    ("engine", "threads", "local, serial or ray"),
    ("seed", -1, "0 to 2147483647"),
    ("seed", 2**31, "0 to 2147483647"),
    ("schedule_steps", -1, "0 or more"),
    ("logging.level", "loud", "debug, info, warning or error"),
    ("logging.trackers", ("comet",), "wandb or mlflow"),
]
REFUSED_BY_APEX_DQN: list[tuple[str, Any, str]] = [
    ("algorithm.gamma", 1.01, "0 to 1"),
    ("algorithm.unroll_length", 0, "1 or more"),
    ("algorithm.replay_ratio", -1.0, "0 or more"),
    ("algorithm.replay_ratio", 0.0, "above 0"),
    ("algorithm.reward_clip", -1.0, "0 or more"),
    ("algorithm.terminal_penalty", -1.0, "0 or more"),
    ("algorithm.n_steps", 0, "1 or more"),
    ("algorithm.n_steps", 21, "at most algorithm.unroll_length (20)"),
    ("algorithm.epsilon", 1.5, "0 to 1"),
    ("algorithm.epsilon_alpha", -1.0, "0 or more"),
    ("algorithm.evaluation_epsilon", NAN, "0 to 1"),
    ("algorithm.target_every", 0, "1 or more"),
]
REFUSED_BY_CONTINUOUS_ACER: list[tuple[str, Any, str]] = [
    ("algorithm.std", 0.0, "above 0"),
    ("algorithm.std", -0.3, "above 0"),
    ("algorithm.std", NAN, "above 0"),
    ("algorithm.num_samples", 0, "1 or more"),
    ("algorithm.trust_region_delta", 0.0, "above 0"),
    ("algorithm.truncation_threshold", -1.0, "0 or more"),
    ("algorithm.ema_decay", 1.5, "0 to 1"),
    ("algorithm.q_cost", INFINITE, "0 or more"),
    ("algorithm.burn_in", 20, "less than algorithm.unroll_length (20)"),
]
REFUSED_BY = [("apex_dqn", *case) for case in REFUSED_BY_APEX_DQN] + [
    ("continuous_acer", *case) for case in REFUSED_BY_CONTINUOUS_ACER
]


def nested(key: str, value: Any) -> dict[str, Any]:
    """`{"a": {"b": value}}` for key `a.b`."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)


@pytest.mark.parametrize(("key", "value", "allowed"), REFUSED, ids=lambda value: str(value))
def test_refused_values_name_the_key_and_what_is_allowed(key: str, value: Any, allowed: str) -> None:
    message = config_error(lambda: from_dict(nested(key, value)))
    assert key in message
    assert allowed in message
    is_each = key in ("environment.wrappers", "logging.trackers")
    shown = value[-1] if is_each else tuple(value) if isinstance(value, list) else value
    assert f"{shown!r} is not allowed" in message


@pytest.mark.parametrize(("algorithm", "key", "value", "allowed"), REFUSED_BY, ids=lambda value: str(value))
def test_refused_values_of_another_algorithm(algorithm: str, key: str, value: Any, allowed: str) -> None:
    name = key.partition(".")[2]
    message = config_error(lambda: from_dict({"algorithm": {"name": algorithm, name: value}}))
    assert f"{key}: {value!r} is not allowed" in message
    assert allowed in message


def every_field(config: Any, prefix: str = "") -> set[str]:
    values = {f"{prefix}{field.name}": getattr(config, field.name) for field in dataclasses.fields(config)}
    nested_names = [every_field(value, f"{name}.") for name, value in values.items() if dataclasses.is_dataclass(value)]
    return {name for name, value in values.items() if not dataclasses.is_dataclass(value)}.union(*nested_names)


def test_every_field_that_can_be_wrong_has_a_case_above() -> None:
    anything_goes = {
        "environment.action_masks",
        "environment.atari.fire_reset",
        "environment.atari.life_loss",
        "environment.atari.full_action_space",
        "environment.atari.grayscale",
        *(
            f"environment.remote.{name}"
            for name in ("token_file", "certificate", "insecure", "origins", "action_low", "local")
        ),
        "ray.compress",
        "network.normalise",
        "algorithm.normalise_rewards",
        "checkpoint.replay",
        "logging.tracker_weights",
        "replay.compress",
        "replay.load",
        "evaluation.greedy",
        "stop.at_return",
        "out",
        "load",
    }
    assert every_field(RunConfig()) - {key for key, _, _ in REFUSED} == anything_goes
    anything_goes = {f"algorithm.{name}" for name in ("name", "double", "dueling", "value_rescaling")}
    assert every_field(ApexDqnConfig(), "algorithm.") - {key for key, _, _ in REFUSED_BY_APEX_DQN} == anything_goes


def test_replay_must_hold_a_batch_and_an_unroll() -> None:
    data = {"replay": {"capacity": 479, "start": 0}}
    message = config_error(lambda: from_dict(data))  # (16 + 8) segments of 20 steps
    assert message.startswith("replay.capacity: 479 is not allowed")
    assert "algorithm.unroll_length = 480 or more" in message
    assert from_dict({"replay": {"capacity": 480, "start": 480}}).replay.capacity == 480


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"ray": {"address": "auto"}}, "actors.count: 0 is not allowed; give the number of actors"),
        ({"learner": {"count": 3}}, "learner.count: 3 is not allowed; give a divisor of learner.batch_size (16)"),
        (
            {"learner": {"count": 4}, "actors": {"count": 3}},
            "learner.count: 4 is not allowed; give at most actors.count (3)",
        ),
        (
            {"learner": {"count": 2, "device": "cuda:1"}},
            "learner.device cuda:1 is one device for all; give auto, cpu or cuda",
        ),
        ({"learner": {"count": 2}, "checkpoint": {"replay": True}}, "checkpoint.replay and replay.load work with one"),
        ({"learner": {"count": 2}, "replay": {"load": "runs/first"}}, "and replay.load work with one learner only"),
    ],
)
def test_what_a_cluster_needs(changes: dict[str, Any], part: str) -> None:
    assert part in config_error(lambda: from_dict({"engine": "ray"} | changes))
    assert from_dict({"engine": "ray", "learner": {"count": 4}, "actors": {"count": 4}}).learner.count == 4


def test_each_learner_s_part_of_replay_must_hold_a_batch_and_an_unroll() -> None:
    data = {"engine": "ray", "learner": {"count": 2}, "replay": {"capacity": 959, "start": 0}}
    assert "algorithm.unroll_length = 480 for each learner or more" in config_error(lambda: from_dict(data))


def test_a_target_return_needs_evaluations() -> None:
    message = config_error(lambda: from_dict({"stop": {"at_return": 1.0}, "evaluation": {"every": 0}}))
    assert message.startswith("evaluation.every: 0 is not allowed")
    assert "stop.at_return" in message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("learner.device", "cuda:3"),
        ("environment.atari.sticky_actions", 1.0),
        ("optimizer.decay", 0.0),
        ("algorithm.gamma", 1.0),
        ("algorithm.replay_ratio", 0.0),
        ("seed", 2**31 - 1),
        ("checkpoint.every", 0),
        ("stop.minutes", 0.5),
    ],
)
def test_borders_are_allowed(key: str, value: Any) -> None:
    config: Any = from_dict(nested(key, value))
    for part in key.split("."):
        config = getattr(config, part)
    assert config == value


def test_configurations_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunConfig().seed = 1  # type: ignore[misc]


def test_temperatures_are_spaced_geometrically() -> None:
    actors = ActorsConfig(count=3, temperature_low=0.5, temperature_high=8.0)
    assert [actors.temperature(index) for index in range(3)] == pytest.approx([0.5, 2.0, 8.0])
    assert ActorsConfig(count=1, temperature_low=0.5, temperature_high=8.0).temperature(0) == 0.5


def test_keyword_arguments_and_kind_of_environment() -> None:
    kwargs = {"lengths": [1, 2], "name": "x", "deep": {"y": None}}
    assert EnvironmentConfig(kwargs=json.dumps(kwargs)).keyword_arguments() == kwargs
    assert EnvironmentConfig(kwargs=kwargs).keyword_arguments() == kwargs
    assert EnvironmentConfig(id="ALE/Pong-v5").is_atari
    assert not EnvironmentConfig().is_atari
    assert StopConfig().at_return is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RunConfig(seed="x"), "seed: 'x' is not allowed; give int"),
        (lambda: RunConfig(seed=True), "seed: True is not allowed; give int"),
        (lambda: RunConfig(seed=1.5), "seed: 1.5 is not allowed; give int"),
        (lambda: RunConfig(engine=3), "engine: 3 is not allowed; give local, serial or ray"),
        (lambda: RunConfig(stop=3), "stop: 3 is not allowed; give StopConfig"),
        (lambda: RunConfig(algorithm="acer"), "algorithm: 'acer' is not allowed; give AlgorithmConfig"),
        (
            lambda: RunConfig(algorithm=AcerConfig(name="apex_dqn")),
            "algorithm.name: 'apex_dqn' is not allowed; its settings are ApexDqnConfig",
        ),
        (
            lambda: RunConfig(algorithm=AlgorithmConfig()),
            f"algorithm.name: '' is not allowed; give {', '.join(ALGORITHMS)} or module:class",
        ),
        (lambda: StopConfig(minutes="1"), "stop.minutes: '1' is not allowed; give float or None"),
        (lambda: StopConfig(env_steps=None), "stop.env_steps: None is not allowed; give int"),
        (lambda: NetworkConfig(hidden_sizes=64), "network.hidden_sizes: 64 is not allowed; give a list"),
        (
            lambda: ActorsConfig(count=10**400),
            "actors.count: an integer beyond 64 bits is not allowed; give one of less than 2^63",
        ),
        (lambda: ActorsConfig(device=None), "actors.device: None is not allowed; give str"),
        (lambda: SupervisionConfig(restarts=[]), "supervision.restarts: [] is not allowed; give int"),
        (lambda: RayConfig(address=1), "ray.address: 1 is not allowed; give str"),
        (lambda: EnvironmentConfig(wrappers="a:b"), "environment.wrappers: 'a:b' is not allowed; give a list"),
        (lambda: AtariConfig(fire_reset=1), "environment.atari.fire_reset: 1 is not allowed; give bool"),
    ],
)
def test_a_value_of_another_type_is_refused_in_python_as_in_a_run_file(make: Callable[[], Any], message: str) -> None:
    assert config_error(make) == message


def test_a_run_is_made_of_values_of_exactly_the_types_they_are_for() -> None:
    """Dataclasses keep what they are given, whatever its type; where a run is read or begins, it is converted."""
    stop = StopConfig(env_steps=1e6, minutes=np.int64(3))  # type: ignore[arg-type]
    network = NetworkConfig(hidden_sizes=[np.int32(8), 16.0])  # type: ignore[arg-type, list-item]
    environment = EnvironmentConfig(kwargs={"length": 7})
    config = RunConfig(environment=environment, network=network, stop=stop, out=Path("here"))  # type: ignore[arg-type]
    expected = from_dict(
        {
            "environment": {"kwargs": '{"length": 7}'},
            "network": {"hidden_sizes": [8, 16]},
            "stop": {"env_steps": 10**6, "minutes": 3},
            "out": "here",
        }
    )
    sections = {"environment": environment, "network": network, "stop": stop}
    for made in (load_run(config), load_run(RunConfig(), **sections, out=Path("here"))):
        assert made == expected
        values = (made.stop.env_steps, made.stop.minutes, *made.network.hidden_sizes, made.environment.kwargs)
        assert [type(value) for value in values] == [int, float, int, int, str]
    other = load_run(config, environment={"kwargs": {"width": 8}})
    assert other.environment.keyword_arguments() == {"width": 8}
    assert type(config.stop.env_steps) is float
    assert environment.kwargs == {"length": 7}
