"""Signals at random moments of a whole run, from its first line to its last."""

from __future__ import annotations

import contextlib
import random
import signal
import statistics
import subprocess
import time
from pathlib import Path

import pytest

from apex_acer.actor.policy import load_policy
from tests.programs import Program, program, report

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="processes are looked up in /proc")

TRIES = 60  # at random moments, some of them twice
PRESSES = 50  # of Ctrl-C while a run learns
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WHOLE = {  # starts, learns, evaluates, saves and ends, within seconds
    "actors__count": 2,
    "stop__env_steps": 8000,
    "evaluation__every": 1000,
    "checkpoint__every": 1000,
}


def whole_s(folder: Path) -> float:
    """How long the whole run takes where nobody disturbs it."""
    started = time.monotonic()
    with program(folder, **WHOLE) as run:
        assert run.ended(within_s=100)["reason"] == "env_steps"
    return time.monotonic() - started


def send(run: Program, chance: random.Random, at_s: float) -> int:
    """One signal after so many seconds, or two; how many."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.wait(at_s)
    group = chance.random() < 0.5
    run.send(chance.choice(SIGNALS), group)
    if chance.random() < 0.3:
        time.sleep(chance.uniform(0, 1))
        run.send(chance.choice(SIGNALS), group)
        return 2
    return 1


def assert_consistent(run: Program) -> str:
    """The files agree with what was said, and each is whole or not there; how the run ended."""
    said, weights = run.said[-1] if run.said else {}, run.out / "weights.safetensors"
    steps = load_policy(str(weights)).metadata["env_steps"] if weights.exists() else None
    if said.get("weights"):
        assert steps == said["env_steps"]
        return f"saved, {said['reason']}"
    if "reason" in said:
        return f"not saved, {said['reason']}"
    assert run.code in (130, -signal.SIGTERM, -signal.SIGHUP, 0), (
        run.said
    )  # before the first process, or after the last
    return "outside of the run"


def disturbed(folder: Path, chance: random.Random, at_s: float) -> tuple[int, str]:
    """Signals of a whole run in which they came after so many seconds, and how it ended."""
    with program(folder, **WHOLE) as run:
        run.wait_for(lambda: run.said)
        sent = send(run, chance, at_s)
        run.wait(30)
        run.assert_nothing_left(within_s=5)
        return sent, assert_consistent(run)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_signals_at_random_moments_leave_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chance, longest = random.Random(0), whole_s(tmp_path / "whole")
    tries = [disturbed(tmp_path / str(number), chance, chance.uniform(0, longest)) for number in range(TRIES)]
    ends = [end for _, end in tries]
    found = {end: ends.count(end) for end in sorted(set(ends))}
    report(capsys, "signals", signals=sum(sent for sent, _ in tries), hangs=0, leftovers=0, ends=found)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_from_ctrl_c_to_a_clean_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seconds, chance = [], random.Random(0)
    for number in range(PRESSES):
        changes = WHOLE | {"actors__count": 4, "stop__env_steps": 10**9}
        with program(tmp_path / str(number), **changes) as run:
            run.wait_until_it_learns()
            time.sleep(chance.uniform(0, 1))
            pressed_at = time.monotonic()
            run.send(signal.SIGINT, group=True)
            assert run.ended(within_s=12)["reason"] == "SIGINT"
            seconds.append(time.monotonic() - pressed_at)
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    report(capsys, "ctrl-c", presses=PRESSES, median_s=cuts[49], p99_s=cuts[98], longest_s=max(seconds))
    assert cuts[98] <= 5
