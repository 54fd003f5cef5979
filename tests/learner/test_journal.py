"""The learner's rows: what is in them and what is kept to be shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import nn

from apex_acer.learner import journal
from apex_acer.learner.journal import Journal
from apex_acer.learner.ranks import ALONE
from tests.runs import tiny_run


def test_a_last_row_that_follows_at_once_has_no_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(journal.time, "monotonic", lambda: now)
    noted = Journal(tiny_run(logging__every_seconds=10.0), tmp_path, nn.Linear(1, 1), ALONE, None, 0)
    for at, updates_per_s in ((4.0, 1.0), (14.0, 2.0), (14.016, 500.0)):
        now = at
        with noted.timers.phase("learning"):
            noted.note_learner({"updates_per_s": updates_per_s, "replay_ratio": at}, 10, at)
    noted.close()
    first, second, last = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert (first["updates_per_s"], second["updates_per_s"]) == (1.0, 2.0)  # a first one has its own, however early
    assert "time_saving" in second
    assert last.keys() == {"source", "env_steps", "wall_s", "replay_ratio"}
    assert noted.rows["learner"]["updates_per_s"] == 2.0
