"""Processes that are killed while they save: whatever is there afterwards is whole, and nothing is lost or left over."""

from __future__ import annotations

import functools
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from apex_acer.actor.policy import load_policy
from apex_acer.storage import checkpoint
from apex_acer.storage.checkpoint import FOLDER, Checkpoint, load, newest
from tests.programs import Program, program, report

PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from apex_acer.storage import checkpoint

folder, number = Path(sys.argv[1]), int(sys.argv[2])
while True:
    number += 1
    array = np.full((64, 1 << 14), number, np.int32)  # 4 MB
    checkpoint.write(folder, number, {"number": number}, {"first": array, "second": array, "empty": b""})
    print(number, flush=True)
"""


def save_until_killed(folder: Path, after: int, wait_s: float) -> int:
    """Saves from the number `after` on, until killed some time after the first was whole; the last one said to be."""
    command = [sys.executable, "-c", PROGRAM, str(folder), str(after)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(wait_s)
        process.kill()
        return int([first, *process.stdout.read().split()][-1])


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / FOLDER).iterdir())


def whole_number(path: Path) -> int:
    """The checkpoint's number, once each of its bytes was held against it."""
    opened = load(path)
    for name in ("first", "second"):
        assert (opened.view(name, (64, 1 << 14), "int32") == opened.state["number"]).all()
    assert opened.read("empty") == b""
    return int(opened.state["number"])


@pytest.mark.parametrize("kills", [3, pytest.param(25, marks=pytest.mark.chaos)])
@pytest.mark.timeout(600)
def test_a_process_killed_while_it_saves_leaves_the_checkpoint_before(
    tmp_path: Path, kills: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only kills in the midst of one count: where a part of it was there. Each process goes on where the last one ended."""
    chance, number, amid, tries = random.Random(0), 0, 0, 0
    while amid < kills:
        tries += 1
        assert tries < 10 * kills
        said = save_until_killed(tmp_path, number, chance.uniform(0, 0.1))
        assert said > number
        amid += any(name.endswith(".part") for name in leftovers(tmp_path))
        path = newest(tmp_path)
        assert path is not None
        number = whole_number(path)
        assert number in (said, said + 1)  # that may have become whole before it could say so
    last = checkpoint.write(tmp_path, number + 1, {}, {})
    assert leftovers(tmp_path) == [last.name]
    report(capsys, "saving", kills_while_saving=amid, other_kills=tries - amid, saved=number, lost_files=0, leftovers=0)


# ── whole runs ──

SAVING: dict[str, Any] = {
    "checkpoint__every": 200,
    "checkpoint__replay": True,
    "replay__capacity": 100_000,
    "network__hidden_sizes": (512, 512),  # some time is needed to save
    "supervision__restarts": 1000,
    "supervision__hung_seconds": 5.0,
    "stop__env_steps": 10**9,
}


def was_restarted(run: Program, times: int) -> bool:
    return bool(run.statuses[-1]["restarts"]["learner"] == times)


def wait_until_it_saves(run: Program) -> None:
    """Until a part of a checkpoint is there."""
    deadline = time.monotonic() + 60
    while not any((run.out / FOLDER).glob(".*.part/*")):
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_a_run_whose_learner_is_killed_and_frozen_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every second time while it saves, and else at any moment."""
    kills, amid, chance = 40, 0, random.Random(0)
    with program(tmp_path / "run", backoff_s=0.05, **SAVING) as run:
        run.wait_for(lambda: newest(run.out))
        for number in range(1, kills + 1):
            before = {name: pid for name, pid in run.children().items() if name != "learner_0"}
            if number % 2:
                wait_until_it_saves(run)
                time.sleep(chance.uniform(0, 0.01))
                run.kill_child("learner_0")
                amid += any((run.out / FOLDER).glob(".*.part"))
                whole(run)
            else:
                time.sleep(chance.uniform(0, 2))
                run.kill_child("learner_0", chance.choice([signal.SIGKILL, signal.SIGSTOP]))
            run.wait_for(functools.partial(was_restarted, run, number))
            assert before == {name: pid for name, pid in run.children().items() if name != "learner_0"}
            run.wait_until_it_learns(400)
        run.send(signal.SIGINT)
        result = run.ended(within_s=15)
    assert load_policy(result["weights"]).metadata["env_steps"] == result["env_steps"]
    assert whole(run).state["env_steps"] == result["env_steps"]
    assert len(leftovers(run.out)) == 1
    rows = [json.loads(line) for line in (run.out / "metrics.jsonl").read_text().splitlines()]
    for name in ("env_steps", "updates"):
        values = [row[name] for row in rows if row["source"] == "learner"]
        assert values == sorted(values)
    report(capsys, "saving learner", kills=kills, while_saving=amid, env_steps=result["env_steps"], lost_files=0)


def whole(run: Program) -> Checkpoint:
    """The newest checkpoint, of which every file was read."""
    path = newest(run.out)
    assert path is not None
    opened = load(path)
    for name in opened.names:
        opened.read(name)
    return opened
