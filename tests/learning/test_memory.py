"""CartPole-v1 whose velocities are hidden: solved with an LSTM, and far from it without."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from apex_acer import RunConfig, load_policy, load_run, train
from apex_acer.actor.evaluator import evaluate_policy


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return dataclasses.replace(load_run("cartpole-memory"), out=str(tmp_path / "run"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("preset", ["cartpole-memory", "cartpole-memory-r2d2"])
def test_an_lstm_solves_it(preset: str, tmp_path: Path) -> None:
    result = train(preset, out=str(tmp_path / "run"))
    assert result.reason == "at_return"
    policy = load_policy(result.weights)
    assert policy.spec.plane_shape == (2,)
    assert evaluate_policy(policy, policy.config.evaluation, seed=123)["eval_return"] == pytest.approx(500, abs=50)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_without_memory_it_stays_below_half_of_that(config: RunConfig) -> None:
    assert config.network.lstm
    assert config.stop.at_return
    forgetful = dataclasses.replace(config, network=dataclasses.replace(config.network, lstm=0))
    assert train(forgetful).reason == "env_steps"
    rows = [json.loads(line) for line in (Path(config.out) / "metrics.jsonl").read_text().splitlines()]
    returns = [row["eval_return"] for row in rows if "eval_return" in row]
    assert len(returns) > 5
    assert max(returns) <= config.stop.at_return / 2
