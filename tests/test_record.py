"""What `python -m docs.record` stores of a run, and the pages that it writes."""

from __future__ import annotations

from typing import Any

from docs.comparisons import draw_learners, draw_minutes, draw_published, draw_published_minutes, draw_races, rate
from docs.entries import RESULTS, anchors, of_runs, pages, read_entries, slug
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


def test_the_games_of_training_are_those_of_all_actors() -> None:
    games = list(training_games(ROWS))
    assert last_games(games, 45) == (50, (30 * 4 + 20 * 7) / 50)
    assert last_games(games, 1000)[0] == 120
    assert last_games([], 100) == (0, 0.0)
    # a curve has all of equal stretches
    assert training_curve(games, 100) == [(0, 90, (40 * 1 + 30 * 2 + 20 * 7) / 90), (100, 30, 4.0)]


def test_a_curve_of_the_learner_has_means_of_equal_stretches() -> None:
    reported = [
        (5, {"grad_norm": 1.0, "entropy": 2.0}),
        (20, {"grad_norm": 2.0}),  # the policy had no turn
        (90, {"grad_norm": 3.0, "entropy": 1.0}),
        (120, {"grad_norm": 4.0}),
    ]
    rows = [{"source": "learner", "env_steps": env_steps, **means} for env_steps, means in reported]
    rows.insert(1, {"source": "learner", "env_steps": 6})  # nothing was learned
    assert learner_curve([*rows, *ROWS], 100) == [
        {"env_steps": 0, "entropy": 1.5, "grad_norm": 2.0},
        {"env_steps": 100, "grad_norm": 4.0},
    ]


def test_pages_of_results_are_up_to_date_and_each_entry_has_its_place() -> None:
    stale = [path.name for path, text in pages().items() if path.read_text(encoding="utf-8") != text]
    assert not stale, "run `python -m docs.record`"
    entries = read_entries()
    assert anchors().keys() == entries.keys()
    for entry in entries.values():
        assert f"<!--entry:{entry.name}-->" in (RESULTS / f"{entry.page}.md").read_text(encoding="utf-8")
    assert slug("ACER, 10 million steps") == "acer-10-million-steps"
    assert slug("Acrobot: Ape-X DQN") == "acrobot-ape-x-dqn"


def test_a_single_run_has_the_error_of_its_games() -> None:
    record = {"fresh_games": [{"mean": -1234.0, "std": 50.0}], "result": {"env_steps": 7, "wall_s": 2.0}}
    assert of_runs([record], {})["score"] == "−1,234 ± 10"
    assert of_runs([record, record], {})["score"] == "−1,234, −1,234"
    assert of_runs([record], {})["exact"] == "−1,234.0 ± 9.8"
    assert of_runs([{}], {"scores": [0.755]})["score"] == "0.76"


def test_comparisons_are_drawn() -> None:
    assert draw_published().startswith(b"\x89PNG")
    assert draw_published_minutes().startswith(b"\x89PNG")
    assert draw_learners().startswith(b"\x89PNG")
    assert draw_races().startswith(b"\x89PNG")
    assert draw_minutes().startswith(b"\x89PNG")


def test_a_linear_learning_rate_falls_to_its_final_fraction() -> None:
    optimizer = {"schedule": "linear", "learning_rate": 2.0, "final_fraction": 0.5}
    run = {"optimizer": optimizer, "stop": {"env_steps": 100}}
    assert [rate(run, steps) for steps in (0, 50, 100)] == [2.0, 1.5, 1.0]
    optimizer["schedule"] = "constant"
    assert rate(run, 100) == 2.0
