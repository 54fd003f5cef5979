"""What whole runs of the algorithms show: actions keep their place (tests/scripted.py), policies act, engines learn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnxruntime
import pytest

from apex_acer.actor.policy import load_policy
from apex_acer.config import RunConfig
from apex_acer.environments.vector import make_environments
from apex_acer.manager.manager import resume, train
from apex_acer.networks.weights import read
from apex_acer.tools.export import export_onnx
from tests import on_policy
from tests.continuous import continuous_run, rows_of
from tests.runs import tiny_run
from tests.scripted import AIM, NAME

BY_PRIORITY = {"replay__sampling": "prioritized"}
SCRIPTED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sequences": ({"low": [[-1, -2, -3], [0, 0, 0]], "high": [[1, 2, 3], [10, 100, 1e6]], "dtype": "float64"}, {}),
    "sequences by priority": ({}, BY_PRIORITY),
    "transitions": ({}, {"algorithm__n_steps": 3}),
    "transitions by priority": (
        {"low": -2.0, "high": 1.0, "dtype": "float64"},
        {"algorithm__n_steps": 3, **BY_PRIORITY},
    ),
}
"""Arguments of the environment, whose action is a table, a vector or a number; and how samples are drawn."""
each_way = pytest.mark.parametrize(("space", "drawn"), SCRIPTED.values(), ids=SCRIPTED)


def scripted_run(out: Path, space: dict[str, Any], **changes: Any) -> RunConfig:
    """A tiny run of the scripted policy that takes aim."""
    fixed = {
        "algorithm__name": NAME,
        "environment__id": AIM,
        "environment__kwargs": json.dumps(space),
        "replay__capacity": 300,  # it wraps around
        "evaluation__every": 200,
        "checkpoint__replay": True,
    }
    return tiny_run(out, **(fixed | changes))


@each_way
def test_every_action_belongs_to_its_observation_and_is_in_the_environment_s_units(
    tmp_path: Path, space: dict[str, Any], drawn: dict[str, Any]
) -> None:
    """Also through a checkpoint, with all of replay; the environment itself refuses actions of another shape or type."""
    first = train(scripted_run(tmp_path, space, stop__env_steps=400, **drawn))
    second = resume(tmp_path, {"env_steps": 800})
    assert 0 < first.updates < second.updates
    assert second.skipped_updates == 0
    assert second.eval_return is not None
    assert second.eval_return < 0
    tensors, _ = read(second.weights)
    assert 0 < tensors["network.weight"] < 1

    policy = load_policy(second.weights, import_modules=True)
    units = make_environments(policy.config.environment, 1, training=False)._vector.single_action_space
    obs = np.random.default_rng(0).uniform(-1, 1, (5, policy.spec.action_dim)).astype(np.float32)
    batch = policy.act(obs)
    assert (batch.shape, batch.dtype) == ((5, *(units.shape or ())), units.dtype)
    np.testing.assert_array_equal(batch, policy.spec.actions.to_environment((1.25 * obs).clip(-1, 1)))
    for action, one in zip(batch, obs, strict=True):
        single = policy.act(one)
        assert isinstance(single, np.ndarray)
        assert units.contains(single)
        np.testing.assert_array_equal(single, action)


def test_an_exported_policy_acts_in_the_environment_s_units(tmp_path: Path) -> None:
    space, _ = SCRIPTED["sequences"]
    policy = load_policy(train(scripted_run(tmp_path / "run", space, stop__env_steps=100)).weights)
    written = export_onnx(policy, tmp_path / "policy.onnx")
    assert list(written.inputs) == ["obs"]  # what a policy remembers for its exploration is not asked for
    assert list(written.outputs) == ["normalised_action", "action"]
    obs = np.random.default_rng(0).uniform(-1, 1, (7, policy.spec.action_dim)).astype(np.float32)
    normalised, action = onnxruntime.InferenceSession(tmp_path / "policy.onnx").run(None, {"obs": obs})
    np.testing.assert_array_equal(normalised, (1.25 * obs).clip(-1, 1))
    expected = policy.act(obs)
    assert (action.shape, action.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(action, expected, rtol=1e-6)


@pytest.mark.parametrize(("name", "environment"), [("ppo_lstm", AIM), ("trpo", "CartPole-v1")])
def test_an_on_policy_weights_file_acts_and_is_exported(tmp_path: Path, name: str, environment: str) -> None:
    settings = {"environment__id": environment, **on_policy.ALGORITHMS[name]}
    policy = load_policy(train(tiny_run(tmp_path / "run", stop__env_steps=200, **settings)).weights)
    spaces = gymnasium.make(environment)
    obs = np.stack([spaces.observation_space.sample() for _ in range(5)]).clip(-3, 3)
    batch = policy.act(obs)
    policy.reset()
    single = policy.act(obs[0])
    assert spaces.action_space.contains(single)
    np.testing.assert_allclose(single, batch[0], rtol=1e-5)
    sampled = {str(policy.act(obs, greedy=False)) for _ in range(20)}  # of which at least one is uncertain
    assert len(sampled) > 1
    export_onnx(policy, tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    state = {name: part.numpy() for name, part in policy.initial_state(5).items()}
    (action,) = session.run(["action"], {"obs": obs.astype(np.float32), **state})
    np.testing.assert_allclose(action, batch, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["a2c", "ppo", "reinforce"])
def test_policies_that_act_and_learn_are_the_same(tmp_path: Path, name: str) -> None:
    """Before an update's first step, though observations are normalised, and over checkpoints in the middle of a batch."""
    one_step = {"algorithm__epochs": 1, "algorithm__minibatches": 1} if name == "ppo" else {}
    settings = on_policy.ALGORITHMS[name] | one_step | {"network__normalise": True, "learner__batch_size": 16}
    every = {"checkpoint__every": 90, "logging__every_seconds": 1e-3, "stop__env_steps": 1000}
    train(tiny_run(tmp_path, engine="serial", **settings, **every))
    kls = [row["behaviour_kl"] for row in rows_of(tmp_path, "learner") if "behaviour_kl" in row]
    assert len(kls) > 5
    assert max(kls) < 1e-6


# ── learning in processes ──


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "engine", "learners"), [("ppo", "local", 1), ("impala", "ray", 1), ("sac", "ray", 2)]
)
def test_they_learn_on_other_engines(
    tmp_path: Path, algorithm: str, engine: str, learners: int, request: pytest.FixtureRequest
) -> None:
    """Actions are within a tenth of the range from the best ones, on average."""
    if engine == "ray":
        request.getfixturevalue("ray_here")
    # with constant steps one PPO in twenty ended beside the aim
    decayed = {"optimizer__schedule": "linear", "schedule_steps": 4000, "stop__env_steps": 4000}
    counts = {"learner__count": learners, "actors__count": 2, "evaluation__every": 0 if learners > 1 else 1000}
    result = train(continuous_run(tmp_path, algorithm, engine=engine, **counts, **decayed))
    assert result.skipped_updates == 0
    obs = np.random.default_rng(0).uniform(-1, 1, (200, 2)).astype(np.float32)
    best = np.array([1, 5]) + np.array([1, 2.5]) * obs
    assert (np.abs(load_policy(result.weights).act(obs) - best).mean(0) < [0.4, 1.0]).all()
    learner = rows_of(tmp_path, "learner")
    assert learner[-1]["refused_messages"] == 0
    lags = {row["policy_lag"] for row in learner if "policy_lag" in row}
    if algorithm != "sac":
        assert (lags == {0.0}) == (algorithm == "ppo")
