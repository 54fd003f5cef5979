"""CartPole-v1 is solved, as `make run` does it, and without velocities by what an LSTM remembers."""

from __future__ import annotations

from pathlib import Path

import pytest

from apex_acer import load_policy, train
from apex_acer.actor.evaluator import evaluate_policy


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_every_seed_reaches_475_within_a_minute(seed: int, tmp_path: Path) -> None:
    result = train("cartpole", seed=seed, out=str(tmp_path / "run"))
    assert result.reason == "at_return"
    assert result.wall_s < 60
    policy = load_policy(result.weights)
    settings = policy.config.evaluation
    assert evaluate_policy(policy, settings, seed + 1)["eval_return"] == result.eval_return  # that of the confirmation
    assert evaluate_policy(policy, settings, seed=123)["eval_return"] >= 475  # other games than those it passed on


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("preset", ["cartpole-memory", "cartpole-memory-r2d2"])
def test_an_lstm_solves_it_where_velocities_are_hidden(preset: str, tmp_path: Path) -> None:
    result = train(preset, out=str(tmp_path / "run"))
    assert result.reason == "at_return"
    policy = load_policy(result.weights)
    assert policy.spec.plane_shape == (2,)
    assert evaluate_policy(policy, policy.config.evaluation, seed=123)["eval_return"] == pytest.approx(500, abs=50)
