"""What a run may not be: each key's values, and keys that do not fit each other."""

from __future__ import annotations

import dataclasses
import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apex_acer.algorithms.acer.settings import AcerConfig
from apex_acer.config import (
    ALGORITHMS,
    ActorsConfig,
    AlgorithmConfig,
    AtariConfig,
    EnvironmentConfig,
    ListenConfig,
    NetworkConfig,
    RunConfig,
    StopConfig,
)
from apex_acer.config.runfile import flat, from_dict, leaves, load_run
from tests.conftest import config_error

NAN, INFINITE = float("nan"), float("inf")

Refused = list[tuple[str, Any, str]]
"""What is allowed, a value that is not, and the keys of which this is true."""
OR_MORE = "1 or more"
REFUSED: Refused = [
    (OR_MORE, 0, "environment.stack environment.atari.frame_skip environment.atari.training_frames"),
    (OR_MORE, 0, "actors.environments actors.weights_every actors.max_unanswered"),
    (OR_MORE, 0, "learner.batch_size learner.count learner.max_skipped_updates replay.capacity"),
    (OR_MORE, 0, "algorithm.unroll_length evaluation.episodes evaluation.environments stop.env_steps self_play.every"),
    ("0 or more", -1, "actors.count environment.atari.noop_max environment.remote.num_actions network.lstm"),
    ("0 or more", -1, "replay.start algorithm.burn_in evaluation.every"),
    ("0 or more", -1, "evaluation.video_every checkpoint.every supervision.restarts schedule_steps self_play.pool"),
    ("0 or more", -0.5, "algorithm.terminal_penalty algorithm.replay_ratio algorithm.truncation_threshold"),
    ("0 or more", -0.5, "algorithm.q_cost algorithm.reward_clip ray.actor_cpus environment.remote.grace_s"),
    ("0 or more", -0.5, "logging.histograms_every_seconds algorithm.entropy_cost"),
    ("0 or more, and finite", INFINITE, "algorithm.entropy_cost"),
    ("above 0", 0.0, "actors.temperature_low optimizer.learning_rate optimizer.eps algorithm.trust_region_delta"),
    ("above 0", 0.0, "logging.every_seconds supervision.hung_seconds stop.minutes optimizer.max_grad_norm"),
    ("above 0", 0.0, "actors.temperature_high supervision.window_minutes supervision.evaluation_minutes"),
    ("above 0", NAN, "optimizer.learning_rate"),
    ("0 to 1", 1.5, "environment.atari.sticky_actions optimizer.final_fraction replay.priority_exponent"),
    ("0 to 1", -0.1, "algorithm.ema_decay replay.importance_exponent replay.importance_exponent_final"),
    ("0 to 1", 1.01, "algorithm.gamma self_play.newest"),
    ("0 to 1, below 1", 1.0, "optimizer.decay optimizer.beta1"),
    ("rmsprop has none; give optimizer.name adam", 0.5, "optimizer.beta1"),
    ("0 to 2147483647", 2**31, "seed"),
    ("0 to 1024", -1, "actors.threads learner.threads"),
    ("0 to 1024", 1025, "actors.threads learner.threads"),
    ("1 to 1024", 10**5, "environment.atari.screen_size"),
    ("1 to 4096", 5000, "environment.remote.clients"),
    ("a gymnasium id", "", "environment.id"),
    ("one JSON object", "gravity = 1", "environment.kwargs environment.remote.observations"),
    ("one JSON object", "[]", "environment.kwargs"),
    ("values that JSON has", {"since": datetime.date(2020, 1, 1)}, "environment.kwargs"),
    ("values that JSON has", {"limit": INFINITE}, "environment.kwargs"),
    ("values that JSON has", {3: 4}, "environment.kwargs"),
    ("module:function", ["a:b", "a:b:c"], "environment.wrappers"),
    ("module:function", "module", "learner.callback"),
    ("random or module:function or a .safetensors file", "strong", "evaluation.opponent"),
    ("rmsprop, rmsprop_tf, adam or module:function", "my package:make", "optimizer.name"),
    ("auto, mlp, conv or module:class", "lstm", "network.torso"),
    ("module:class", "my_package.", "network.torso"),
    (f"{', '.join(ALGORITHMS)} or module:class", "a2c", "algorithm.name"),
    ("auto, first or last", "middle", "environment.channels"),
    ("cpu, cuda, cuda:N or auto", "gpu", "actors.device learner.device"),
    ("learner or cpu", "cuda", "replay.device"),
    ("auto, float32 or bfloat16", "float16", "learner.precision"),
    ("constant or linear", "cosine", "optimizer.schedule"),
    ("nature, a3c, universe or board", "resnet", "network.convolutions"),
    ("relu or tanh", "gelu", "network.activation"),
    ("uniform, prioritized or rewarded", "newest", "replay.sampling"),
    ("local, serial or ray", "threads", "engine"),
    ("debug, info, warning or error", "loud", "logging.level"),
    ("wandb or mlflow", ("comet",), "logging.trackers"),
    ("acer needs a hidden layer; give one width or more, each 1 or more", [], "network.hidden_sizes"),
    ("each 1 or more", [64, 0], "network.hidden_sizes"),
    ("give float or None", "soon", "stop.minutes"),
    ("replay.capacity (100000)", 100_001, "replay.start"),
    ("less than algorithm.unroll_length (20)", 20, "algorithm.burn_in"),
    ("engine local has one learner; give engine ray", 2, "learner.count"),
    ("auto, host:port or nothing", "ray://head:10001", "ray.address"),
    ("with engine ray only", "auto", "ray.address"),
    ("ADDRESS:PORT", "7777", "environment.remote.listen"),
    ("a port from 1 to 65535", "127.0.0.1:65536", "environment.remote.listen"),
    ("beyond this machine, give certificate and private_key for TLS", "0.0.0.0:7777", "environment.remote.listen"),
    ("both certificate and private_key", "key.pem", "environment.remote.private_key"),
    ("numbers of 1 or more", [4, 0], "environment.remote.observation_shape environment.remote.num_choices"),
    ("bool, uint8, ", "float16", "environment.remote.observation_dtype"),
    ("for each name", {"arm": {"shape": [0], "dtype": "float32"}}, "environment.remote.observations"),
    ("for each name", {"arm": {"shape": [2], "dtype": "text"}}, "environment.remote.observations"),
    ("for each name", {"room": {"n": 0}}, "environment.remote.observations"),
    ("for each name", {"": {"n": 2}}, "environment.remote.observations"),
    ("above its action_low", [1.0], "environment.remote.action_high"),
    ("a finite bound", [1e300], "environment.remote.action_high"),
]
REFUSED_BY_CONTINUOUS_ACER: Refused = [
    ("above 0", 0.0, "algorithm.std"),
    (OR_MORE, 0, "algorithm.num_samples"),
    ("less than algorithm.unroll_length (20)", 20, "algorithm.burn_in"),
]
CASES = [
    (algorithm, key, value, allowed)
    for algorithm, table in (("acer", REFUSED), ("continuous_acer", REFUSED_BY_CONTINUOUS_ACER))
    for allowed, value, keys in table
    for key in keys.split()
]


def nested(key: str, value: Any) -> dict[str, Any]:
    """`{"a": {"b": value}}` for key `a.b`."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)


@pytest.mark.parametrize(("algorithm", "key", "value", "allowed"), CASES, ids=str)
def test_refused_values_name_the_key_and_what_is_allowed(algorithm: str, key: str, value: Any, allowed: str) -> None:
    data = nested(key, value)
    message = config_error(lambda: from_dict({**data, "algorithm": {"name": algorithm, **data.get("algorithm", {})}}))
    assert key in message
    assert allowed in message
    is_each = key in ("environment.wrappers", "logging.trackers")
    shown = value[-1] if is_each else tuple(value) if isinstance(value, list) else value
    assert f"{shown!r} is not allowed" in message


def every_field(config: Any, prefix: str = "") -> set[str]:
    values = {f"{prefix}{field.name}": getattr(config, field.name) for field in dataclasses.fields(config)}
    nested_names = [every_field(value, f"{name}.") for name, value in values.items() if dataclasses.is_dataclass(value)]
    return {name for name, value in values.items() if not dataclasses.is_dataclass(value)}.union(*nested_names)


def test_every_field_that_can_be_wrong_has_a_case_above() -> None:
    anything_goes = {
        *(f"environment.atari.{name}" for name in ("fire_reset", "life_loss", "full_action_space", "grayscale")),
        *(f"environment.remote.{name}" for name in ("token_file", "certificate", "insecure", "origins", "action_low")),
        *(
            "environment.action_masks",
            "environment.remote.local",
            "ray.compress",
            "network.normalise",
            "network.layer_norm",
        ),
        *("algorithm.normalise_rewards", "checkpoint.replay", "logging.tracker_weights", "replay.compress"),
        *("replay.load", "evaluation.greedy", "stop.at_return", "out", "load"),
    }
    refused = {key for _, _, keys in REFUSED for key in keys.split()}
    assert every_field(RunConfig()) - refused == anything_goes


RAY: dict[str, Any] = {"engine": "ray", "learner": {"count": 2}}
ONE_KIND = "give one of num_actions, num_choices, and action_low with action_high"


def clients(remote: dict[str, Any] | None = None, **sections: Any) -> dict[str, Any]:
    """A run whose environments are remote clients."""
    environment = {"id": "remote", "remote": {"observation_shape": [4], "num_actions": 2, **(remote or {})}}
    return {"environment": environment, "actors": {"environments": 1}, **sections}


@pytest.mark.parametrize(
    ("data", "part"),
    [
        ({"replay": {"capacity": 479, "start": 0}}, "algorithm.unroll_length = 480 or more"),  # (16 + 8) · 20 steps
        (RAY | {"replay": {"capacity": 959, "start": 0}}, "algorithm.unroll_length = 480 for each learner or more"),
        ({"stop": {"at_return": 1.0}, "evaluation": {"every": 0}}, "evaluation.every: 0 is not allowed"),
        ({"engine": "ray", "ray": {"address": "auto"}}, "actors.count: 0 is not allowed; give the number of actors"),
        (RAY | {"learner": {"count": 3}}, "learner.count: 3 is not allowed; give a divisor of learner.batch_size (16)"),
        (RAY | {"learner": {"count": 4}, "actors": {"count": 3}}, "give at most actors.count (3)"),
        (RAY | {"learner": {"count": 2, "device": "cuda:1"}}, "learner.device cuda:1 is one device for all"),
        (RAY | {"checkpoint": {"replay": True}}, "checkpoint.replay and replay.load work with one learner only"),
        (RAY | {"replay": {"load": "runs/first"}}, "and replay.load work with one learner only"),
        (clients(engine="serial"), "engine: 'serial' is not allowed; environment.id remote needs engine local"),
        (clients(actors={"count": 2, "environments": 1}), "actors.count: 2 is not allowed; one actor serves all"),
        (clients(actors={"environments": 8}), "actors.environments: 8 is not allowed; an unroll has the steps of one"),
        (clients(algorithm={"name": "ppo"}), "algorithm.pipelined: False is not allowed; remote clients do not wait"),
        (
            clients(evaluation={"video_every": 1}),
            "evaluation.video_every: 1 is not allowed; clients play the evaluation",
        ),
        (clients({"observation_shape": []}), "remote.observation_shape: () is not allowed; give the shape"),
        (clients({"num_actions": 0}), f"environment.remote.num_actions: 0 is not allowed; {ONE_KIND}"),
        (clients({"action_low": [0.0], "action_high": [1.0]}), f"num_actions: 2 is not allowed; {ONE_KIND}"),
    ],
    ids=str,
)
def test_keys_that_do_not_fit_each_other(data: dict[str, Any], part: str) -> None:
    assert part in config_error(lambda: from_dict(data))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("learner.device", "cuda:3"),
        ("environment.atari.sticky_actions", 1.0),
        ("optimizer.decay", 0.0),
        ("algorithm.replay_ratio", 0.0),
        ("replay", {"capacity": 480, "start": 480}),
        ("seed", 2**31 - 1),
        ("stop.minutes", 0.5),
    ],
)
def test_borders_are_allowed(key: str, value: Any) -> None:
    data = nested(key, value)
    assert dict(leaves(data)).items() <= flat(from_dict(data)).items()
    assert from_dict({"engine": "ray", "learner": {"count": 4}, "actors": {"count": 4}}).learner.count == 4


def test_a_local_environment_stands_in_for_clients_where_one_is_named() -> None:
    named = load_run("cartpole-remote").environment
    assert (named.id, named.local.id) == ("remote", "CartPole-v1")
    unnamed = from_dict(clients()).environment
    assert config_error(lambda: unnamed.local).startswith("environment.remote.local: '' is not allowed")


@pytest.mark.parametrize(
    ("listen", "address", "loopback"),
    [("127.0.0.1:7777", ("127.0.0.1", 7777), True), ("[::1]:7", ("::1", 7), True), ("host:7", ("host", 7), False)],
)
def test_addresses_of_clients(listen: str, address: tuple[str, int], loopback: bool) -> None:
    settings = ListenConfig(listen=listen, insecure=True)
    assert (settings.address, settings.is_loopback, settings.url) == (address, loopback, f"ws://{listen}")


@pytest.mark.parametrize(
    ("cls", "values", "message"),
    [
        (RunConfig, {"seed": True}, "seed: True is not allowed; give int"),
        (RunConfig, {"seed": 1.5}, "seed: 1.5 is not allowed; give int"),
        (RunConfig, {"engine": 3}, "engine: 3 is not allowed; give local, serial or ray"),
        (RunConfig, {"stop": 3}, "stop: 3 is not allowed; give StopConfig"),
        (RunConfig, {"algorithm": "acer"}, "algorithm: 'acer' is not allowed; give AlgorithmConfig"),
        (RunConfig, {"algorithm": AcerConfig("apex_dqn")}, "'apex_dqn' is not allowed; its settings are ApexDqn"),
        (RunConfig, {"algorithm": AlgorithmConfig()}, "algorithm.name: '' is not allowed; give acer, "),
        (StopConfig, {"minutes": "1"}, "stop.minutes: '1' is not allowed; give float or None"),
        (NetworkConfig, {"hidden_sizes": 64}, "network.hidden_sizes: 64 is not allowed; give a list"),
        (NetworkConfig, {"hidden_sizes": (64, "a")}, "network.hidden_sizes: 'a' is not allowed; give int"),
        (ActorsConfig, {"count": 10**400}, "an integer beyond 64 bits is not allowed; give one of less than 2^63"),
        (ActorsConfig, {"device": None}, "actors.device: None is not allowed; give str"),
        (EnvironmentConfig, {"kwargs": 3}, "environment.kwargs: 3 is not allowed; give str or dict"),
        (AtariConfig, {"fire_reset": 1}, "environment.atari.fire_reset: 1 is not allowed; give bool"),
    ],
)
def test_a_value_of_another_type_is_refused_in_python_as_in_a_run_file(
    cls: Any, values: dict[str, Any], message: str
) -> None:
    assert message in config_error(lambda: cls(**values))


def test_a_run_is_made_of_values_of_exactly_the_types_they_are_for() -> None:
    """Dataclasses keep what they are given, whatever its type; where a run is read or begins, it is converted."""
    stop = StopConfig(env_steps=1e6, minutes=np.int64(3))  # type: ignore[arg-type]
    network = NetworkConfig(hidden_sizes=[np.int32(8), 16.0])  # type: ignore[arg-type]
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
        assert [*map(type, values)] == [int, float, int, int, str]
    other = load_run(config, environment={"kwargs": {"width": 8}})
    assert other.environment.keyword_arguments() == {"width": 8}
    assert repr(config.stop.env_steps) == "1000000.0"
    assert environment.kwargs == {"length": 7}
