"""The learner's rows: what is in them and what is kept to be shown."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest

from apex_acer.config import ALGORITHMS, LoggingConfig, settings_classes
from apex_acer.learner.reporting import Counters
from apex_acer.manager.manager import train
from apex_acer.protocol.metrics import METRICS, RATES, written
from apex_acer.storage.history import History, read_rows
from tests.conftest import config_error
from tests.runs import MakeLearner, tiny_run


def test_a_last_row_that_follows_at_once_has_no_rates(
    make_learner: MakeLearner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    learner = make_learner(tiny_run(logging__every_seconds=10.0))
    reporter = learner._reporter
    for at, updates in ((4.0, 4), (14.0, 24), (14.016, 32)):
        now, learner.counters.updates = at, updates
        with reporter.timers.phase("learning"):
            reporter.log_learner(learner._figures())
    learner.close()
    first, second, last = map(json.loads, next(tmp_path.rglob("metrics.jsonl")).read_text().splitlines())
    assert (first["updates_per_s"], second["updates_per_s"]) == (1.0, 2.0)  # a first one has its own, however early
    assert "time_saving" in second
    assert last["updates"] == 32
    assert not last.keys() & RATES
    assert reporter.status()["rows"]["learner"]["updates_per_s"] == 2.0


def test_a_learner_that_succeeds_another_counts_the_time_since_that_one_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same program; a resumed run's time begins with its first step."""
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    first = Counters("run", started_at=90.0)
    first.note_first_step(0.0)
    now = 160.0
    state = first.state()
    for run_id, wall_s, startup_s in (("run", 460.0, 10.0), ("another", 120.0, 405.0)):
        now = 500.0
        after = Counters(run_id, started_at=90.0)
        after.restore(state)
        after.note_first_step(5.0 if run_id == "another" else 300.0)
        now = 560.0
        assert (after.wall_s, after.startup_s) == (wall_s, startup_s)


def test_a_callback_that_cannot_be_imported_is_refused_before_a_file_is_written(
    make_learner: MakeLearner, tmp_path: Path
) -> None:
    message = config_error(lambda: make_learner(tiny_run(learner__callback="json:absent")))
    assert message.startswith("learner.callback: ")
    assert not [*tmp_path.rglob("metrics.jsonl"), *tmp_path.rglob("tb")]


WITH_CURIOSITY = [(name, {"algorithm__curiosity": 0.1}) for name in ("actor_critic", "ppo")]


NEEDS: dict[str, dict[str, Any]] = {"r2d2": {"network__lstm": 8}, "unreal": {"algorithm__pixel_control": 0.0}}


@pytest.mark.parametrize(("name", "settings"), [*((name, NEEDS.get(name, {})) for name in ALGORITHMS), *WITH_CURIOSITY])
def test_an_algorithm_writes_the_metrics_that_the_table_says(
    name: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    environment = "CartPole-v1" if settings_classes()[name].actions == "Discrete" else "Pendulum-v1"
    small = tiny_run(
        tmp_path, algorithm__name=name, environment__id=environment, stop__env_steps=150, replay__start=50, **settings
    )
    train(dataclasses.replace(small, logging=LoggingConfig(every_seconds=1e-6)))
    history = History(read_rows(tmp_path / "metrics.jsonl"))
    learner, actor = history.log("learner").keys(), history.log("actor_0").keys()
    particular = {metric for metric, what in METRICS.items() if what.only or what.needs}
    assert (learner | actor) & particular == {metric for metric in particular if written(metric, small.algorithm)}
    assert ("action_std" in actor) == (environment == "Pendulum-v1")
    for kind, log in {"learner": learner, "actor": actor}.items():
        assert log - {"env_steps", "wall_s"} <= {metric for metric, what in METRICS.items() if kind in what.by}
