"""Observations with parts: what no part shows alone is learned from all of them, on every engine and by the bit."""

from __future__ import annotations

import dataclasses
import itertools
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


@pytest.mark.parametrize("kind", ["Dict", pytest.param("Tuple", marks=pytest.mark.slow)])
def test_a_run_is_resumed_to_the_bit_and_its_policy_and_export_take_what_the_environment_gives(
    tmp_path: Path, kind: str
) -> None:
    exact: dict[str, Any] = {"checkpoint__every": 200, "checkpoint__replay": True}
    whole = train(small_run(tmp_path / "whole", kind, **exact))
    train(small_run(tmp_path / "halves", kind, stop__env_steps=200, **exact))
    expected = load_file(whole.weights)
    resumed = load_file(resume(tmp_path / "halves", {"env_steps": 600}).weights)
    assert expected.keys() == resumed.keys()
    assert sum("normaliser.parts" in name for name in expected) > 6
    for name, array in expected.items():
        np.testing.assert_array_equal(resumed[name], array, err_msg=name)

    policy, made = load_policy(whole.weights, import_modules=True), gymnasium.make(ROOMS, size=10, kind=kind)
    pairs = list(itertools.pairwise(made.reset(seed=seed)[0] for seed in range(21)))
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
    first, *others = names
    for wrong, said in (
        (batch | {first: batch[first][:5]}, "the same number of each part"),
        ({name: batch[name] for name in others}, f"an observation without the part '{first}'"),
        (batch | {first: batch[first][..., None]}, f"require observations of {first} of shape "),
    ):
        with pytest.raises(ValueError, match=said):
            policy.act(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("seed", range(5))
def test_all_parts_together_are_learned_from(tmp_path: Path, algorithm: str, seed: int) -> None:
    """Of 8 steps, random play does 1 right."""
    result = train(rooms_run(tmp_path, algorithm, seed=seed))
    assert result.reason == "at_return", result


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
