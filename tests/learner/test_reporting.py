"""The learner's rows: what is in them and what is kept to be shown."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from apex_acer.protocol.metrics import RATES
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
            reporter.log_learner()
    learner.close()
    first, second, last = map(json.loads, next(tmp_path.rglob("metrics.jsonl")).read_text().splitlines())
    assert (first["updates_per_s"], second["updates_per_s"]) == (1.0, 2.0)  # a first one has its own, however early
    assert "time_saving" in second
    assert last["updates"] == 32
    assert not last.keys() & RATES
    assert reporter.status()["rows"]["learner"]["updates_per_s"] == 2.0
