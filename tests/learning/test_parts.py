"""Observations with parts: what no part shows alone is learned from all of them, on every engine and by the bit."""

from __future__ import annotations

import dataclasses
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnxruntime
import pytest
from safetensors.numpy import load_file

from apex_acer import load_policy, resume, train
from apex_acer.client import spaces
from apex_acer.config import EnvironmentConfig, RemoteConfig, RunConfig
from apex_acer.protocol.planes import parts_of
from apex_acer.tools.export import export_onnx
from tests.conftest import config_error
from tests.engines.local.test_remote import Clients
from tests.remote.conftest import free_port
from tests.runs import tiny_run

ROOMS = "tests.environments_for_tests:Rooms-v0"
SMALL_ROOMS = "tests.environments_for_tests:SmallRooms-v0"
ALGORITHMS: dict[str, dict[str, Any]] = {
    "acer": {"algorithm__name": "acer", "algorithm__replay_ratio": 2.0},
    "ppo": {"algorithm__name": "ppo", "algorithm__epochs": 4, "algorithm__minibatches": 4},
}


def rooms_run(out: Path, algorithm: str = "acer", *, rooms: dict[str, Any] | None = None, **changes: Any) -> RunConfig:
    """A run of `algorithm` that looks at rooms, of which `rooms` are the settings."""
    settings = {
        "environment__id": ROOMS,
        "environment__kwargs": json.dumps(rooms or {}),
        "actors__count": 1,
        "actors__environments": 16,
        "learner__batch_size": 16,
        "learner__precision": "float32",
        "optimizer__name": "adam",
        "optimizer__learning_rate": 1e-3,
        "optimizer__eps": 1e-8,
        "network__hidden_sizes": (64,),
        "replay__capacity": 5_000,
        "replay__start": 200,
        "algorithm__unroll_length": 8,
        "algorithm__gamma": 0.0,
        "algorithm__entropy_cost": 0.05,
        "evaluation__every": 1000,
        "evaluation__episodes": 40,
        "evaluation__environments": 20,
        "stop__env_steps": 20_000,
        "stop__at_return": 7.2,
    }
    return tiny_run(out, **(settings | ALGORITHMS[algorithm] | changes))


def small_run(out: Path, kind: str = "Dict", **changes: Any) -> RunConfig:
    """A run of a moment, which looks at two rooms together and has statistics of them."""
    settings: dict[str, Any] = {"stop__env_steps": 600, "evaluation__every": 0, "stop__at_return": None}
    settings |= {"environment__stack": 2, "network__normalise": True, "rooms": {"size": 10, "kind": kind}}
    return rooms_run(out, **(settings | changes))


def test_a_run_and_its_resumption_are_the_same_run(tmp_path: Path) -> None:
    exact: dict[str, Any] = {"checkpoint__every": 200, "checkpoint__replay": True}
    whole = train(small_run(tmp_path / "whole", **exact))
    train(small_run(tmp_path / "halves", stop__env_steps=200, **exact))
    halves = resume(tmp_path / "halves", {"env_steps": 600})
    expected, found = load_file(whole.weights), load_file(halves.weights)
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def looks(num: int, kind: str = "Dict") -> list[Any]:
    """Observations of `num` environments."""
    made = gymnasium.make(ROOMS, size=10, kind=kind)
    return [made.reset(seed=seed)[0] for seed in range(num)]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("seed", range(5))
def test_all_parts_together_are_learned_from(tmp_path: Path, algorithm: str, seed: int) -> None:
    """Of 8 steps, random play does 1 right."""
    result = train(rooms_run(tmp_path, algorithm, seed=seed))
    assert result.reason == "at_return", result


@pytest.mark.slow
@pytest.mark.parametrize("hidden", ["camera", "joints", "room"])
def test_no_part_can_be_missed(tmp_path: Path, hidden: str) -> None:
    """Who guesses one of three digits does half of the steps right, 4."""
    result = train(rooms_run(tmp_path, "ppo", rooms={"hidden": hidden}, stop__env_steps=8000))
    assert result.reason == "env_steps"
    assert result.eval_return is not None
    assert 1.5 < result.eval_return < 5.5


@pytest.mark.parametrize("kind", ["Dict", pytest.param("Tuple", marks=pytest.mark.slow)])
def test_a_policy_takes_what_the_environment_gives_and_its_export_too(tmp_path: Path, kind: str) -> None:
    path = train(small_run(tmp_path, kind, stop__env_steps=300)).weights
    assert sum("normaliser.parts" in name for name in load_file(path)) > 6
    policy = load_policy(path, import_modules=True)
    pairs = list(zip(looks(20, kind), looks(21, kind)[1:], strict=True))
    names = list(policy.spec.boxes)
    assert names == (["arm.joints", "camera", "room"] if kind == "Dict" else ["0", "1", "2.joints"])
    batch = {name: np.stack([[parts_of(policy.spec, obs)[name] for obs in pair] for pair in pairs]) for name in names}
    actions = policy.act(batch)
    for index, action in enumerate(actions):
        assert policy.act({name: batch[name][index] for name in names}) == action
    written = export_onnx(policy, tmp_path / "policy.onnx")
    assert list(written.inputs) == [f"obs.{name}" for name in names]
    session, boxes = onnxruntime.InferenceSession(tmp_path / "policy.onnx"), policy.spec.boxes
    joined = {name: array for name, array in batch.items() if boxes[name].is_image}
    joined = {name: np.concatenate(np.split(array, 2, 1), -1)[:, 0] for name, array in joined.items()}
    given = {f"obs.{name}": joined.get(name, batch[name]) for name in names}
    found = dict(zip(written.outputs, session.run(None, given), strict=True))
    np.testing.assert_array_equal(found["action"], actions)
    with pytest.raises(ValueError, match="the same number of each part"):
        policy.act(batch | {names[0]: batch[names[0]][:5]})
    with pytest.raises(ValueError, match=f"an observation without the part '{names[0]}'"):
        policy.act({name: batch[name] for name in names[1:]})
    with pytest.raises(ValueError, match=f"require observations of {names[0]} of shape "):
        policy.act(batch | {names[0]: batch[names[0]][..., None]})


def test_a_part_that_is_not_finite_is_named(tmp_path: Path) -> None:
    message = config_error(lambda: train(small_run(tmp_path, rooms={"size": 10, "spoilt": "joints"})))
    assert "step gave an observation of arm.joints with nan" in message


def test_a_torso_of_one_s_own_gets_the_parts_side_by_side(tmp_path: Path) -> None:
    result = train(small_run(tmp_path, network__torso="docs.examples.residual:Residual", stop__env_steps=300))
    network: Any = load_policy(result.weights, import_modules=True).network
    assert network.torso.first.in_features == 2 * (5 + 100 + 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"network__lstm": 8},
        {"algorithm__replay_ratio": 0.0, "learner__precision": "bfloat16"},
        {"engine": "local"},
        pytest.param({"engine": "ray"}, marks=pytest.mark.skipif(find_spec("ray") is None, reason="no extra ray")),
    ],
)
def test_every_way_to_learn(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert train(small_run(tmp_path, **changes)).reason == "env_steps"


@pytest.mark.slow
def test_remote_clients_send_the_parts_by_name(tmp_path: Path) -> None:
    described = spaces(gymnasium.make(ROOMS, size=10))
    assert described["observation"]["arm.joints"] == {"shape": [5], "dtype": "float32"}
    url = f"127.0.0.1:{free_port()}"
    parts = described["observation"] | {"room": {"n": 2, "start": 3}}
    remote = RemoteConfig(listen=url, observations=parts, num_actions=8)
    config = small_run(tmp_path, actors__environments=1, engine="local")
    config = dataclasses.replace(config, environment=EnvironmentConfig("remote", stack=2, remote=remote))
    clients = Clients(tmp_path, f"ws://{url}", SMALL_ROOMS, 2)
    result = train(config)
    assert result.reason == "env_steps"
    assert all(played.steps > 100 for played in clients.join())
