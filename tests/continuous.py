"""The algorithms for continuous actions, and a small run of each; a new one is a line here, and has all of their tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from apex_acer.config import RunConfig
from tests import on_policy
from tests.runs import tiny_run

AIM = "tests.environments_for_tests:Aim-v0"
# an actor-critic takes a single step on each batch
SMALL_BATCHES = {"learner__batch_size": 4, "optimizer__learning_rate": 1e-2, "algorithm__normalise_advantages": True}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "sac": {"algorithm__name": "sac"},
    "crossq": {
        "algorithm__name": "sac",
        "algorithm__batch_norm": True,
        "algorithm__policy_every": 3,
        "algorithm__critic_hidden_sizes": (64,),
        "optimizer__beta1": 0.5,
    },
    "ddpg": {"algorithm__name": "ddpg", "algorithm__noise": "ornstein_uhlenbeck"},
    "td3": {
        "algorithm__name": "ddpg",
        "algorithm__num_critics": 2,
        "algorithm__policy_every": 2,
        "algorithm__target_noise": 0.2,
    },
    "continuous_acer": {
        "algorithm__name": "continuous_acer",
        "algorithm__replay_ratio": 4.0,
        "learner__batch_size": 8,
    },
    **{name: {**SMALL_BATCHES, **given} for name, given in on_policy.ALGORITHMS.items()},
}
"""The settings of each by which it learns to take aim in a moment."""


def steps_to_learn(algorithm: str) -> int:
    """The environment steps in which it does."""
    return 2500 if ALGORITHMS[algorithm]["algorithm__name"] == "actor_critic" else 1500


def each(*fast: str) -> pytest.MarkDecorator:
    """The `algorithm` of a test; in the fast tier only the named ones, by default all."""
    marks = {name: [] if name in (fast or ALGORITHMS) else [pytest.mark.slow] for name in ALGORITHMS}
    return pytest.mark.parametrize("algorithm", [pytest.param(name, marks=marks[name]) for name in ALGORITHMS])


def settings_of(algorithm: str) -> dict[str, Any]:
    """The changes of a tiny run by which `algorithm` takes aim (`Aim`)."""
    common = {
        "environment__id": AIM,
        "actors__count": 1,
        "learner__batch_size": 32,
        "optimizer__name": "adam",
        "optimizer__learning_rate": 3e-3,
        "optimizer__eps": 1e-8,
        "network__hidden_sizes": (32,),
        "replay__capacity": 10_000,
        "replay__start": 200,
        "algorithm__gamma": 0.5,
        "algorithm__replay_ratio": 16.0,
    }
    return common | ALGORITHMS[algorithm]


def continuous_run(out: Path | str, algorithm: str, **changes: Any) -> RunConfig:
    """A run of `algorithm` that takes aim."""
    return tiny_run(out, **(settings_of(algorithm) | {"stop__env_steps": steps_to_learn(algorithm)} | changes))


def rows_of(folder: Path, source: str) -> list[dict[str, Any]]:
    """The rows of metrics that `source` wrote."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["source"] == source]
