"""MountainCar, whose top random play hardly ever reaches, is solved from recorded games of a rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from apex_acer import load_run, train, write_unrolls
from docs.examples.recorded_games import recorded_game

GAMES = 150


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_recorded_games_show_what_random_play_does_not_find(tmp_path: Path) -> None:
    """Without them every evaluation has the return of a game in which the top is not reached, -200."""
    sections: dict[str, Any] = {"environment": {"id": "MountainCar-v0"}, "learner": {"threads": 1}, "engine": "serial"}
    sections |= {"evaluation": {"every": 2000}, "stop": {"env_steps": 16_000, "at_return": -130.0}}
    config = load_run("cartpole-apex-dqn", replay={"capacity": 100_000}, **sections)
    k = config.algorithm.unroll_length
    write_unrolls(tmp_path / "games", config, [unroll for game in range(GAMES) for unroll in recorded_game(game, k)])
    result = train(config, out=str(tmp_path / "run"), seed=1, replay={"load": str(tmp_path / "games")})
    assert result.reason == "at_return"
