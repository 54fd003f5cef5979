"""The runs in a folder: what each one's files say of it, also while it trains, and of folders that are no runs."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from apex_acer.manager.callbacks import Callbacks
from apex_acer.manager.manager import train
from apex_acer.protocol.messages import Status
from apex_acer.storage.history import TAIL_BYTES
from apex_acer.tools import runs
from apex_acer.tools.runs import RunStatus, list_runs
from tests.histories import made_up_rows, make_up
from tests.runs import tiny_run

ENDED = {"state": "ended", "reason": "env_steps", "error": "", "weights": "w"}


def only(folder: Path) -> RunStatus:
    (found,) = list_runs(folder)
    return found


def test_a_real_run_that_has_ended(finished_run: Path) -> None:
    run = only(finished_run.parent)
    rows = [json.loads(line) for line in (finished_run / "metrics.jsonl").read_text().splitlines()]
    scores = [row["eval_return"] for row in rows if row["source"] == "evaluator"]
    assert len(scores) >= 3
    assert (run.name, run.environment, run.algorithm, run.seed) == ("run", "CartPole-v1", "acer", 3)
    assert (run.best, run.last) == (rows[-1]["best_return"], scores[-1])
    assert (run.env_steps, run.budget, run.wall_s) == (rows[-1]["env_steps"], 1000, rows[-1]["wall_s"])
    assert (run.state, run.note, run.checkpoint) == ("ended", "env_steps", True)
    assert 0 <= run.age_s < 24 * 3600  # other tests may have run since
    assert only(finished_run).name == "run"


def test_the_best_is_known_though_only_the_end_is_read(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(finished_run, tmp_path / "run")
    before = only(tmp_path)
    path = folder / "metrics.jsonl"
    data = path.read_bytes()
    path.write_bytes(b"x" * (len(data) - 400) + data[-400:])  # read, it would have no scores
    monkeypatch.setattr(runs, "TAIL_BYTES", 400)
    at_end = only(tmp_path)
    assert (at_end.best, at_end.last) == (before.best, before.last)
    with path.open("a") as file:  # after the checkpoint
        for source, metric, value in (("evaluator", "eval_return", 7.0), ("learner", "best_return", 1000.0)):
            row = {"source": source, "env_steps": 2000, "wall_s": 9.0, metric: value}
            file.write(f"{json.dumps(row)}\n{'x' * 1000}\n")
    after = only(tmp_path)
    assert (after.best, after.last, after.env_steps, after.wall_s) == (1000, 7, 2000, 9)


def test_without_a_checkpoint_every_row_counts(tmp_path: Path) -> None:
    rows = made_up_rows(0, 100, num=2000)
    folder = make_up(tmp_path / "run", tiny_run(), rows)
    assert (folder / "metrics.jsonl").stat().st_size > 10 * TAIL_BYTES
    scores = [row["eval_return"] for row in rows if "eval_return" in row]
    run = only(tmp_path)
    assert (run.best, run.last, run.env_steps, run.checkpoint) == (max(scores), scores[-1], 200_000, False)


@pytest.mark.parametrize(
    ("end", "state", "note"),
    [
        (None, "broken off", ""),
        (ENDED | {"reason": "at_return"}, "ended", "at_return"),
        (ENDED | {"state": "stopped", "reason": "SIGTERM", "weights": ""}, "stopped", "SIGTERM, not saved"),
        ({"state": "failed", "reason": "", "error": "actor_0: x"}, "failed", "actor_0: x"),
        ([], "broken off", ""),
        ({"state": "ended"}, "broken off", ""),
        ("{" * 10_000, "broken off", ""),
    ],
)
def test_how_a_run_ended_is_in_a_file_of_its_own_unless_its_log_is_held(
    end: Any, state: str, note: str, tmp_path: Path
) -> None:
    folder = make_up(tmp_path / "run", tiny_run(), made_up_rows(0, 1, num=3))
    (folder / "log.txt").write_text("2026-01-02 03:04:05,678 manager: failed: this is for people\n")
    if end is not None:
        (folder / "result.json").write_text(end if isinstance(end, str) else json.dumps(end))
    run = only(tmp_path)
    assert (run.state, run.note) == (state, note)
    with (folder / "log.txt").open("a") as log:  # looking has not kept the lock
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert only(tmp_path).state == "running"


def test_a_real_run_while_it_trains_and_after_it_was_interrupted(tmp_path: Path) -> None:
    seen = []

    def look(status: Status) -> None:
        seen.append(only(tmp_path))
        if seen[-1].env_steps and not status["news"]:  # it is told of the signal, too
            signal.raise_signal(signal.SIGINT)

    train(tiny_run(tmp_path / "run", stop__env_steps=10**9), Callbacks(on_status=look))
    assert (seen[-1].state, seen[-1].note, seen[-1].checkpoint) == ("running", "", False)
    run = only(tmp_path)
    assert (run.state, run.note, run.checkpoint) == ("stopped", "SIGINT", True)
    assert run.env_steps >= seen[-1].env_steps


def test_those_that_wrote_last_come_first(tmp_path: Path) -> None:
    for age, name in ((50, "b"), (10, "c"), (90, "a")):
        folder = make_up(tmp_path / name, tiny_run(), made_up_rows(0, 1, num=3))
        for path in folder.iterdir():
            os.utime(path, (time.time() - age - 100, time.time() - age - 100))
        os.utime(folder / "metrics.jsonl", (time.time() - age, time.time() - age))
    found = list_runs(tmp_path)
    assert [run.name for run in found] == ["c", "b", "a"]
    assert [run.age_s for run in found] == pytest.approx([10, 50, 90], abs=5)


def test_the_runs_of_a_sweep_are_found_but_nothing_within_a_run_or_deeper_and_no_other_folder(tmp_path: Path) -> None:
    rows = made_up_rows(0, 1, num=3)
    for name in ("single", "single/inner", "sweep/gamma=0.9/seed_0", "a/b/c/d", ".hidden/run"):
        make_up(tmp_path / name, tiny_run(), rows)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "config.toml").write_text("[tool]")
    os.mkfifo(tmp_path / "files" / "log.txt")
    (tmp_path / "text.txt").touch()
    for name in ("a-loop", "z-loop"):
        (tmp_path / name).symlink_to(name)
    assert {run.name for run in list_runs(tmp_path)} == {"single", "sweep/gamma=0.9/seed_0"}


def test_broken_runs_are_shown_with_a_reason(tmp_path: Path) -> None:
    configs = {"not-toml": "seed = [", "other-key": "colour = 'red'", "wrong-type": "seed = 'one'", "bytes": "\udcff"}
    for name, text in configs.items():
        folder = make_up(tmp_path / name, tiny_run(), made_up_rows(0, 1, num=5))
        (folder / "config.toml").write_text(text, errors="surrogateescape")
    (make_up(tmp_path / "no-config", tiny_run(), made_up_rows(0, 1, num=5)) / "config.toml").unlink()
    found = {run.name: run for run in list_runs(tmp_path)}
    assert found.keys() == {*configs, "no-config"}
    for run in found.values():
        assert run.state == "unreadable"
        assert "config.toml" in run.note
        assert "\n" not in run.note
        assert (run.environment, run.seed, run.budget) == (None, None, None)
        assert run.env_steps == 500
    assert "colour" in found["other-key"].note


def test_broken_rows_and_checkpoints_do_no_harm(finished_run: Path, tmp_path: Path) -> None:
    for name in ("rows", "manifest", "pipe"):
        shutil.copytree(finished_run, tmp_path / name)
    (tmp_path / "rows" / "metrics.jsonl").write_bytes(b"\x00\xff" * 1000)
    for manifest in (tmp_path / "manifest").glob("checkpoint/*/manifest.json"):
        manifest.write_text("{")
    (tmp_path / "pipe" / "metrics.jsonl").unlink()
    os.mkfifo(tmp_path / "pipe" / "metrics.jsonl")
    found = {run.name: run for run in list_runs(tmp_path)}
    before = only(finished_run)
    assert (found["rows"].best, found["rows"].env_steps) == (before.best, 0)
    assert (found["manifest"].best, found["manifest"].checkpoint) == (before.best, False)
    assert (found["pipe"].last, found["pipe"].state) == (before.last, "ended")
