"""MountainCar, whose top random play hardly ever reaches: solved from recorded games of a rule, and not without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from apex_acer import RunConfig, TrainResult, load_run, train, write_unrolls
from docs.examples.recorded_games import recorded_game

GAMES = 150


def config() -> RunConfig:
    changes: dict[str, Any] = {"environment": {"id": "MountainCar-v0"}, "engine": "serial", "learner": {"threads": 1}}
    stop = {"env_steps": 16_000, "at_return": -130.0}
    evaluation = {"every": 2000}
    return load_run("cartpole-apex-dqn", replay={"capacity": 100_000}, evaluation=evaluation, stop=stop, **changes)


def trained(tmp_path: Path, seed: int, **changes: Any) -> TrainResult:
    return train(config(), out=str(tmp_path / "run"), seed=seed, **changes)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_recorded_games_show_what_random_play_does_not_find(tmp_path: Path) -> None:
    k = config().algorithm.unroll_length
    write_unrolls(tmp_path / "games", config(), [unroll for game in range(GAMES) for unroll in recorded_game(game, k)])
    result = trained(tmp_path, 1, replay={"load": str(tmp_path / "games")})
    assert result.reason == "at_return"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_without_them_the_top_is_not_reached(tmp_path: Path) -> None:
    assert trained(tmp_path, 1).reason == "env_steps"
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert {row["eval_return"] for row in rows if "eval_return" in row} == {-200.0}
