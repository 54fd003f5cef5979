"""The learner's rows: what is in them and what is kept to be shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import nn

from apex_acer.learner import journal
from apex_acer.learner.counters import Counters, RunClock
from apex_acer.learner.journal import Journal
from apex_acer.learner.ranks import ALONE
from tests.runs import RUN_ID, tiny_run


def test_a_last_row_that_follows_at_once_has_no_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(journal.time, "monotonic", lambda: now)
    config, counters = tiny_run(logging__every_seconds=10.0), Counters(RunClock(RUN_ID, 0.0))
    noted = Journal(config, tmp_path, nn.Linear(1, 1), ALONE, counters)
    for at, updates in ((4.0, 4), (14.0, 24), (14.016, 32)):
        now, counters.updates = at, updates
        with noted.timers.phase("learning"):
            noted.note_learner({"replay_ratio": at})
    noted.close()
    first, second, last = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert (first["updates_per_s"], second["updates_per_s"]) == (1.0, 2.0)  # a first one has its own, however early
    assert "time_saving" in second
    assert last.keys() == {"source", "env_steps", "wall_s", "replay_ratio"}
    assert noted.rows["learner"]["updates_per_s"] == 2.0
