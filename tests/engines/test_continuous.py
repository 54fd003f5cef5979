"""Continuous actions on every way that a run has for them, with an algorithm that checks each batch (tests/scripted.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from apex_acer.actor.policy import load_policy
from apex_acer.cli import main
from apex_acer.config import RunConfig
from apex_acer.environments.vector import make_environments
from apex_acer.manager.manager import resume, train
from apex_acer.networks.weights import read
from apex_acer.storage import checkpoint
from apex_acer.tools.export import export_onnx
from tests.continuous import ALGORITHMS, continuous_run
from tests.programs import program
from tests.runs import tiny_run
from tests.scripted import AIM, NAME

SPACES: dict[str, dict[str, Any]] = {
    "asymmetric": {},
    "a number": {"low": -2.0, "high": 1.0, "dtype": "float64"},
    "a table": {"low": [[-1, -2, -3], [0, 0, 0]], "high": [[1, 2, 3], [10, 100, 1e6]], "dtype": "float64"},
}
FEEDS: dict[str, dict[str, Any]] = {
    "segments": {},
    "segments by priority": {"replay__sampling": "prioritized"},
    "windows": {"algorithm__n_steps": 3},
    "windows by priority": {"algorithm__n_steps": 3, "replay__sampling": "prioritized"},
}


def scripted_run(out: Path, space: dict[str, Any] | None = None, **changes: Any) -> RunConfig:
    """A tiny run of the scripted policy that takes aim."""
    fixed = {
        "algorithm__name": NAME,
        "environment__id": AIM,
        "environment__kwargs": json.dumps(space or {}),
        "replay__capacity": 300,  # it wraps around
        "stop__env_steps": 1200,
        "evaluation__every": 400,
    }
    return tiny_run(out, **(fixed | changes))


@pytest.mark.parametrize("feed", FEEDS.values(), ids=FEEDS)
@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_every_action_belongs_to_its_observation(tmp_path: Path, space: dict[str, Any], feed: dict[str, Any]) -> None:
    """Also through a checkpoint, with all of replay; the environment itself refuses actions of another shape or type."""
    settings = {"checkpoint__replay": True, **feed}
    first = train(scripted_run(tmp_path, space, stop__env_steps=600, **settings))
    second = resume(tmp_path, {"env_steps": 1200})
    assert 0 < first.updates < second.updates
    assert second.skipped_updates == 0
    assert second.eval_return is not None
    assert second.eval_return < 0
    tensors, _ = read(second.weights)
    assert 0 < tensors["network.weight"] < 1


@pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=pytest.mark.slow)])
def test_other_engines_carry_them_as_well(tmp_path: Path, engine: str, request: pytest.FixtureRequest) -> None:
    if engine == "ray":
        request.getfixturevalue("ray_here")
    result = train(scripted_run(tmp_path, engine=engine, stop__env_steps=4000, evaluation__every=0))
    assert result.updates > 20
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row for row in rows if row["source"] == "learner"][-1]["refused_messages"] == 0


@pytest.mark.slow
def test_several_learners_have_them_as_well(tmp_path: Path, ray_here: object) -> None:
    result = train(scripted_run(tmp_path, engine="ray", learner__count=2, stop__env_steps=4000, evaluation__every=0))
    assert result.updates > 20


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights file of a finished run."""
    return Path(train(scripted_run(tmp_path_factory.mktemp("scripted"), stop__env_steps=200)).weights)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_a_policy_acts_in_the_environment_s_units(tmp_path: Path, space: dict[str, Any]) -> None:
    path = train(scripted_run(tmp_path, space, stop__env_steps=100)).weights
    policy = load_policy(path)
    environments = make_environments(policy.config.environment, 1, training=False)
    actions = policy.spec.actions
    given = environments._vector.single_action_space
    d = policy.spec.action_dim
    obs = np.random.default_rng(0).uniform(-1, 1, (5, d)).astype(np.float32)
    batch = policy.act(obs)
    assert (batch.shape, batch.dtype) == ((5, *given.shape), given.dtype)
    np.testing.assert_array_equal(batch, actions.to_environment((1.25 * obs).clip(-1, 1)))
    for action, one in zip(batch, obs, strict=True):
        single = policy.act(one)
        assert isinstance(single, np.ndarray)
        assert given.contains(single)
        np.testing.assert_array_equal(single, action)


def test_the_command_line_evaluates_and_plays_it(trained: Path, tmp_path: Path, capsys: Any) -> None:
    assert main(["evaluate", str(trained), "--episodes", "6", "--import-modules"]) == 0
    assert main(["evaluate", str(trained), "--card", "--import-modules"]) == 0
    video = tmp_path / "aim.mp4"
    assert main(["play", str(trained), "--video", str(video), "--episodes", "2", "--import-modules"]) == 0
    out = capsys.readouterr().out
    assert video.stat().st_size > 0
    returns = [
        float(line.split("return ")[1].split(",")[0]) for line in out.splitlines() if line.startswith("episode ")
    ]
    assert len(returns) == 2
    assert all(-4 * 2 < value < 0 for value in returns)


@pytest.mark.parametrize(
    "space",
    [
        pytest.param(space, id=name, marks=[] if name == "a table" else pytest.mark.slow)
        for name, space in SPACES.items()
    ],
)
def test_an_exported_policy_acts_in_the_environment_s_units(tmp_path: Path, space: dict[str, Any]) -> None:
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


# ── algorithms that learn ──

STEPS = 4000
# with constant steps one PPO in twenty ended beside the aim, and so did an A3C whose actors ran ahead
DECAYED = {"optimizer__schedule": "linear", "schedule_steps": STEPS}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "ray"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_they_learn_on_other_engines(
    tmp_path: Path, algorithm: str, engine: str, request: pytest.FixtureRequest
) -> None:
    if engine == "ray":
        request.getfixturevalue("ray_here")
    changes = {"actors__count": 2, "evaluation__every": 1000, "stop__env_steps": STEPS, **DECAYED}
    result = train(continuous_run(tmp_path, algorithm, engine=engine, **changes))
    assert result.skipped_updates == 0
    assert learned(result.weights)


def learned(weights: str) -> bool:
    """Whether the actions are within a tenth of the range from the best ones, on average."""
    obs = np.random.default_rng(0).uniform(-1, 1, (200, 2)).astype(np.float32)
    best = np.array([1, 5]) + np.array([1, 2.5]) * obs
    return bool((np.abs(load_policy(weights).act(obs) - best).mean(0) < [0.4, 1.0]).all())


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["sac", "ppo"])
def test_two_learners_learn_it_too(tmp_path: Path, algorithm: str, ray_here: object) -> None:
    changes = {"learner__count": 2, "actors__count": 2, "stop__env_steps": STEPS, **DECAYED}
    assert learned(train(continuous_run(tmp_path, algorithm, engine="ray", **changes)).weights)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_run_that_was_killed_goes_on(tmp_path: Path, algorithm: str) -> None:
    settings = {"checkpoint__every": 500, "checkpoint__replay": True, "stop__env_steps": 10**6, **DECAYED}
    config = continuous_run(tmp_path / "run" / "run", algorithm, engine="local", **settings)
    with program(tmp_path / "run", config=config) as run:
        run.wait_for(lambda: run.statuses and run.statuses[-1]["env_steps"] > 700)
        run.send(9)
        run.assert_nothing_left(within_s=10)
    path = checkpoint.newest(run.out)
    assert path is not None
    saved = checkpoint.load(path).state
    result = resume(run.out, {"env_steps": saved["env_steps"] + STEPS})
    assert (result.reason, result.skipped_updates) == ("env_steps", 0)
    assert result.updates > saved["updates"] + 100
    assert learned(result.weights)
