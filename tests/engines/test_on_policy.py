"""What runs of on-policy algorithms leave behind, and the engines on which they learn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnxruntime
import pytest

from apex_acer.actor.policy import load_policy
from apex_acer.manager.manager import resume, train
from apex_acer.tools.export import export_onnx
from tests import on_policy
from tests.continuous import AIM, rows_of
from tests.programs import program
from tests.runs import tiny_run

ENVIRONMENTS = {"discrete": "CartPole-v1", "box": AIM}
FAST = ("ppo_lstm, box", "trpo, discrete")
RUNS = [f"{name}, {kind}" for name in on_policy.ALGORITHMS for kind in ENVIRONMENTS]


def settings_of(run: str) -> dict[str, Any]:
    name, kind = run.split(", ")
    return {"environment__id": ENVIRONMENTS[kind], **on_policy.ALGORITHMS[name]}


@pytest.mark.parametrize("run", [pytest.param(r, marks=[] if r in FAST else pytest.mark.slow) for r in RUNS])
def test_a_weights_file_acts_and_is_exported(tmp_path: Path, run: str) -> None:
    policy = load_policy(train(tiny_run(tmp_path / "run", stop__env_steps=200, **settings_of(run))).weights)
    environment = gymnasium.make(policy.config.environment.id)
    obs = np.stack([environment.observation_space.sample() for _ in range(5)]).clip(-3, 3)
    batch = policy.act(obs)
    policy.reset()
    single = policy.act(obs[0])
    assert environment.action_space.contains(single)
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
    every = {"checkpoint__every": 30, "logging__every_seconds": 1e-3, "stop__env_steps": 2000}
    train(tiny_run(tmp_path, engine="serial", **settings, **every))
    found = [row["behaviour_kl"] for row in rows_of(tmp_path, "learner") if "behaviour_kl" in row]
    assert len(found) > 10
    assert max(found) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "ray"])
@pytest.mark.parametrize("name", ["ppo", "impala"])
def test_they_learn_on_other_engines(tmp_path: Path, name: str, engine: str, request: pytest.FixtureRequest) -> None:
    """CartPole: a random policy has a return of 22."""
    if engine == "ray":
        request.getfixturevalue("ray_here")
    changes = {
        "optimizer__name": "adam",
        "optimizer__learning_rate": 3e-3,
        "algorithm__normalise_advantages": True,
        "algorithm__unroll_length": 8,
        "network__activation": "tanh",
        "evaluation__every": 5000,
        "evaluation__episodes": 20,
        "stop__at_return": 80.0,
        "stop__env_steps": 200_000,  # a tenth of it is the usual case; actors that race make each run another
    }
    result = train(tiny_run(tmp_path, engine=engine, **(on_policy.ALGORITHMS[name] | changes)))
    assert (result.reason, result.skipped_updates) == ("at_return", 0)
    learner = rows_of(tmp_path, "learner")
    assert learner[-1]["refused_messages"] == 0
    lags = {row["policy_lag"] for row in learner if "policy_lag" in row}
    assert (lags == {0.0}) == (name == "ppo")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo_lstm", "reinforce"])
def test_a_run_that_was_killed_goes_on(tmp_path: Path, name: str) -> None:
    settings = {"engine": "local", "checkpoint__every": 500, "stop__env_steps": 10**9}
    with program(tmp_path / "run", config=tiny_run(tmp_path, **(on_policy.ALGORITHMS[name] | settings))) as run:
        run.wait_for(lambda: run.statuses and run.statuses[-1]["env_steps"] > 1200)
        run.send(9)
        run.assert_nothing_left(within_s=10)
    before = [json.loads(line) for line in (run.out / "metrics.jsonl").read_text().splitlines()]
    result = resume(run.out, {"env_steps": before[-1]["env_steps"] + 1000})
    assert (result.reason, result.skipped_updates) == ("env_steps", 0)
    learner = rows_of(run.out, "learner")
    assert [row["env_steps"] for row in learner] == sorted(row["env_steps"] for row in learner)
    assert all(row["policy_lag"] == 0 for row in learner if "policy_lag" in row)
