"""Observations with parts: what no part shows alone is learned from all of them, on every engine and by the bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from apex_acer import train
from apex_acer.config import RunConfig
from tests.runs import tiny_run

ROOMS = "tests.environments_for_tests:Rooms-v0"
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


SMALL = {"rooms": {"size": 10}, "stop__env_steps": 600, "evaluation__every": 0, "stop__at_return": None}


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
    result = train(rooms_run(tmp_path, "ppo", rooms={"hidden": hidden}))
    assert result.reason == "env_steps"
    assert result.eval_return is not None
    assert 1.5 < result.eval_return < 5.5
