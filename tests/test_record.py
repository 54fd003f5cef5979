"""What `python -m docs.record` keeps of a run."""

from __future__ import annotations

from typing import Any

from docs.record import last_games


def row(source: str, episodes: int, episode_return: float) -> dict[str, Any]:
    return {"source": source, "episodes": episodes, "episode_return": episode_return}


def test_the_last_games_of_training_are_those_of_all_actors_until_there_are_enough() -> None:
    rows = [
        row("actor_0", 40, 1.0),
        row("actor_1", 30, 2.0),
        row("actor_0", 70, 4.0),  # 30 more
        {"source": "actor_1"},
        row("actor_1", 20, 7.0),  # it was started again
        {"source": "evaluator", "eval_return": 100.0},
    ]
    assert last_games(rows, 45) == {"episodes": 50, "mean": (30 * 4 + 20 * 7) / 50}
    assert last_games(rows, 1000)["episodes"] == 120
    assert last_games([], 100) == {"episodes": 0, "mean": 0.0}
