"""What figures show of runs: which are one line, what tells the lines apart, and which panels there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apex_acer.config.runfile import from_dict
from apex_acer.protocol.metrics import METRICS, OWN
from apex_acer.views.figures import FIGURES, MOST_OWN, MOST_SOURCES, group, make_panels, make_title, read_runs
from tests.conftest import config_error
from tests.histories import made_up_rows, make_up
from tests.runs import tiny_run


def test_every_figure_has_metrics_of_each_kind_that_it_shows() -> None:
    drawn = {(kind, metric.figure) for metric in (*METRICS.values(), OWN) for kind in metric.by if metric.figure}
    assert {(kind, name) for name, figure in FIGURES.items() for kind in figure.by} <= drawn
    assert {name for _, name in drawn} == FIGURES.keys()


def test_one_run_has_a_line_for_each_actor_and_one_for_each_share_of_time(finished_run: Path) -> None:
    runs = read_runs([finished_run, finished_run / ".." / "run" / "."])
    assert len(runs) == 1, "given twice, it counts once"
    evaluator, actors = make_panels("returns", runs)
    assert (evaluator.title, evaluator.y_label) == ("evaluator", "eval_return (reward)")
    assert evaluator.x_label == "environment steps"
    assert [line.label for line in actors.lines] == ["actor_0", "actor_1"]
    learner, actors = make_panels("time", runs)
    assert [line.label for line in learner.lines][:2] == ["time_learning", "time_taking"]
    assert [line.label for line in actors.lines] == ["time_environment", "time_policy", "time_waiting"]
    assert learner.y_label == "share of the time (s / s)"
    assert all(make_panels(name, runs) for name in FIGURES)
    assert make_title("time", runs) == "Where time goes: run"


def test_many_actors_are_one_line_with_a_band_and_of_several_runs_each_counts_with_its_mean(tmp_path: Path) -> None:
    folder = make_up(tmp_path / "many", tiny_run(), made_up_rows(0, 100, actors=MOST_SOURCES + 1))
    (line,) = make_panels("returns", read_runs([folder]))[1].lines
    assert line.label == f"{MOST_SOURCES + 1} actors: median and quartiles"
    assert (line.high > line.low).all()
    rows = [row | {"episode_return": 10.0 * (row["source"] == "actor_1")} for row in made_up_rows(0, 1)]
    folders = [make_up(tmp_path / name, tiny_run(seed=seed), rows) for seed, name in enumerate("ab")]
    (line,) = make_panels("returns", read_runs(folders))[1].lines
    np.testing.assert_allclose([line.low, line.middle, line.high], 5.0)


def test_seeds_are_one_group_and_what_differs_names_the_groups(tmp_path: Path) -> None:
    folders = []
    for rate in (0.001, 0.002):
        for seed in range(3):
            config = tiny_run(f"out-{seed}", seed=seed, load=f"from-{seed}", optimizer__learning_rate=rate)
            level = 1e5 * rate + 10 * seed  # 100, 110, 120 and 200, 210, 220
            folders.append(make_up(tmp_path / f"{rate}" / f"{seed}", config, made_up_rows(0, level)))
    runs = read_runs(folders)
    assert {name: len(found) for name, found in group(runs).items()} == {
        "learning_rate=0.001 (3 runs)": 3,
        "learning_rate=0.002 (3 runs)": 3,
    }
    evaluator, actors = make_panels("returns", runs)
    assert [line.label for line in evaluator.lines] == [line.label for line in actors.lines] == list(group(runs))
    for line, level in zip(evaluator.lines, (110, 210), strict=True):
        assert line.middle[-1] == pytest.approx(level, rel=0.15)
        np.testing.assert_allclose((line.high - line.low)[-1] / line.middle[-1], 10 / level, rtol=0.01)
    assert len(make_panels("time", runs)) == 7  # one for each share
    assert make_title("lag", runs) == "Policy lag: CartPole-v1 (median and quartiles over the runs of a line)"


def test_of_seeds_only_evaluations_at_a_target_go_on_flat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first stops at its target half-way to the end of the others, of which one still trains."""
    folders = []
    for seed, (num, level) in enumerate([(40, 100.0), (90, 50.0), (80, 50.0)]):
        config = tiny_run(seed=seed, stop__at_return=95.0, evaluation__every=500)
        rows = [
            row | {"eval_return": level} if row["source"] == "evaluator" else row
            for row in made_up_rows(seed, level, num)
        ]
        folders.append(make_up(tmp_path / f"{seed}", config, rows))
    for over in ("env_steps", "wall_s"):
        step = 100 if over == "env_steps" else 0.5
        monkeypatch.setitem(FIGURES, "returns", FIGURES["returns"]._replace(over=over))
        evaluator, actors = make_panels("returns", read_runs(folders))
        (line,) = evaluator.lines
        assert line.x[-1] == 80 * step
        assert [part.tolist() for part in line.reached] == [[40 * step], [100.0]]
        assert line.high[-1] == 75  # half-way from 50 to 100
        (line,) = actors.lines
        assert (line.x[0], line.x[-1], len(line.reached[0])) == (step, 40 * step, 0)


def names(folders: list[Path]) -> list[str]:
    return list(group(read_runs(folders)))


def test_lines_are_named_by_algorithm_then_environment_then_the_keys_that_differ(tmp_path: Path) -> None:
    made = {
        "a": tiny_run(),
        "b": tiny_run(algorithm__gamma=0.5),
        "c": from_dict({"algorithm": {"name": "apex_dqn"}}),
        "d": tiny_run(environment__id="Acrobot-v1"),
    }
    folder = {name: make_up(tmp_path / name, config, made_up_rows(0, 1)) for name, config in made.items()}
    assert names([folder["a"], folder["c"]]) == ["acer (1 run)", "apex_dqn (1 run)"]
    assert names([folder["a"], folder["d"]]) == ["CartPole-v1 (1 run)", "Acrobot-v1 (1 run)"]
    assert names(list(folder.values())) == [
        "acer, CartPole-v1, gamma=0.99 (1 run)",
        "acer, CartPole-v1, gamma=0.5 (1 run)",
        "apex_dqn, CartPole-v1 (1 run)",
        "acer, Acrobot-v1 (1 run)",
    ]


def test_where_many_keys_differ_lines_have_the_names_of_their_folders(tmp_path: Path) -> None:
    few: dict[str, Any] = {"learner__batch_size": 8, "optimizer__learning_rate": 0.1, "network__hidden_sizes": (8, 8)}
    many = few | {"algorithm__gamma": 0.5}
    made = {"plain": {}, "few": few, "sweep/many": many}
    folders = {name: make_up(tmp_path / name, tiny_run(**made[name]), made_up_rows(0, 1)) for name in made}
    folders["seed"] = make_up(tmp_path / "sweep/seed_1", tiny_run(seed=1, **many), made_up_rows(1, 1))
    rate = tiny_run().optimizer.learning_rate
    assert (
        names([folders["few"], folders["plain"]])[1] == f"batch_size=4, learning_rate={rate}, hidden_sizes=16 (1 run)"
    )
    assert names([folders["sweep/many"], folders["plain"], folders["seed"]]) == [
        "sweep/many … (2 runs)",
        "plain … (1 run)",
    ]


def test_a_group_without_data_keeps_its_place_and_a_panel_without_any_is_left_out(tmp_path: Path) -> None:
    rows = made_up_rows(0, 1)
    alone = [row for row in rows if row["source"] != "evaluator"]
    made = {0.8: alone, 0.9: rows}
    folders = [make_up(tmp_path / f"{gamma}", tiny_run(algorithm__gamma=gamma), made[gamma]) for gamma in made]
    evaluator, _ = make_panels("returns", read_runs(folders))
    lines = [(line.label, len(line.x) > 0) for line in evaluator.lines]
    assert lines == [("gamma=0.8 (1 run)", False), ("gamma=0.9 (1 run)", True)]
    (actors,) = make_panels("returns", read_runs(folders[:1]))
    assert actors.title == "actors"


def test_names_that_are_not_in_the_table_come_last_and_of_very_many_the_first_are_drawn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    layers = {f"layer_{number:03}": 1.0 for number in range(MOST_OWN + 1)}
    own = {"learner": layers, "actor_0": {"seen": 3.0}}
    rows = [row | own.get(row["source"], {}) for row in made_up_rows(0, 1, num=2)]
    run = read_runs([make_up(tmp_path / "run", tiny_run(), rows)])
    panels = [(panel.title, panel.y_label) for panel in make_panels("learner", run)]
    names = [("learner", name) for name in list(layers)[:MOST_OWN]]
    assert panels[-MOST_OWN - 2 :] == [("learner", "q_ret (reward)"), *names, ("actors", "seen")]
    assert caplog.messages == [f"learner: {MOST_OWN + 1} metrics are not in the table; the first {MOST_OWN} are drawn"]


def test_a_run_that_cuts_a_line_short_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folders = []
    for seed, (name, num) in enumerate({"long": 100, "longer": 150, "cut": 10, "other": 10}.items()):
        config = tiny_run(seed=seed, algorithm__gamma=0.75 if name == "other" else 0.5)
        folders.append(make_up(tmp_path / name, config, made_up_rows(0, 1, num)))
    read_runs(folders)
    (warning,) = caplog.messages
    assert warning.startswith(f"{tmp_path / 'cut'} has only 1,000 env steps, and the lines of its group end there")


def test_what_is_no_run_or_has_no_data_is_refused_in_one_line_and_left_out_beside_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    empty, broken, full = (
        make_up(tmp_path / name, tiny_run(), rows)
        for name, rows in (("empty", []), ("broken", made_up_rows(0, 1)), ("full", made_up_rows(0, 1)))
    )
    (broken / "config.toml").write_text("seed = [")
    assert "no folder" in config_error(lambda: read_runs([]))
    assert "no config.toml" in config_error(lambda: read_runs([tmp_path]))
    assert "config.toml" in config_error(lambda: read_runs([broken]))
    assert "no metrics yet" in config_error(lambda: read_runs([empty]))
    assert [run.folder for run in read_runs([broken, empty, full])] == [full]
    assert f"{empty}: no metrics yet" in caplog.text
