"""CartPole-v1 is solved, as `make run` does it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from apex_acer import load_policy, load_run, train
from apex_acer.actor.evaluator import evaluate_policy


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_every_seed_reaches_475_within_a_minute(seed: int, tmp_path: Path) -> None:
    result = train(dataclasses.replace(load_run("cartpole"), seed=seed, out=str(tmp_path / "run")))
    assert result.reason == "at_return"
    assert result.wall_s < 60
    policy = load_policy(result.weights)
    settings = policy.config.evaluation
    assert evaluate_policy(policy, settings, seed + 1)["eval_return"] == result.eval_return  # that of the confirmation
    assert evaluate_policy(policy, settings, seed=123)["eval_return"] >= 475  # other games than those it passed on
