"""What `python -m docs.record` keeps of a run."""

from __future__ import annotations

from typing import Any

from docs.record import last_games, learner_curve, training_curve, training_games


def row(source: str, env_steps: int, episodes: int, episode_return: float) -> dict[str, Any]:
    return {"source": source, "env_steps": env_steps, "episodes": episodes, "episode_return": episode_return}


ROWS = (
    row("actor_0", 10, 40, 1.0),
    row("actor_1", 90, 30, 2.0),
    row("actor_0", 110, 70, 4.0),  # 30 more
    {"source": "actor_1"},
    row("actor_1", 99, 20, 7.0),  # it was started again, and reports late
    {"source": "evaluator", "eval_return": 100.0},
)


def test_the_last_games_of_training_are_those_of_all_actors_until_there_are_enough() -> None:
    games = list(training_games(ROWS))
    assert last_games(games, 45) == (50, (30 * 4 + 20 * 7) / 50)
    assert last_games(games, 1000)[0] == 120
    assert last_games([], 100) == (0, 0.0)


def test_a_curve_of_training_has_all_games_of_equal_stretches() -> None:
    games = list(training_games(ROWS))
    assert training_curve(games, 100) == [(0, 90, (40 * 1 + 30 * 2 + 20 * 7) / 90), (100, 30, 4.0)]


def test_a_curve_of_the_learner_has_means_of_equal_stretches() -> None:
    reported = [
        (5, {"grad_norm": 1.0, "entropy": 2.0}),
        (90, {"grad_norm": 3.0, "entropy": 1.0}),
        (120, {"grad_norm": 4.0}),
    ]
    rows = [{"source": "learner", "env_steps": env_steps, **means} for env_steps, means in reported]
    rows.insert(1, {"source": "learner", "env_steps": 6})  # nothing was learned
    assert learner_curve([*rows, *ROWS], 100) == [
        {"env_steps": 0, "entropy": 1.5, "grad_norm": 2.0},
        {"env_steps": 100, "grad_norm": 4.0},
    ]
