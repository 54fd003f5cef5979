"""Real runs by `python -c`, whose processes are killed and frozen, and which are ended by real signals."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from apex_acer.actor.policy import load_policy
from apex_acer.storage.checkpoint import newest
from tests.processes import processes
from tests.programs import Program, eventually

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="processes are looked up in /proc")

ENDLESS = {"actors__count": 1, "stop__env_steps": 10**9}
Start = Callable[..., Program]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    programs: list[Program] = []

    def start(**changes: Any) -> Program:
        programs.append(Program(tmp_path / str(len(programs)), **(ENDLESS | changes)))
        return programs[-1]

    yield start
    for started in programs:
        started.kill()


def log_of(run: Program) -> str:
    return (run.out / "log.txt").read_text()


def assert_saved(run: Program, result: dict[str, Any]) -> None:
    assert result["env_steps"] > 0
    assert load_policy(result["weights"]).metadata["env_steps"] == result["env_steps"]
    assert "Traceback" not in log_of(run)


def test_a_run_goes_on_without_an_actor_the_launcher_and_the_learner_until_ctrl_c(start: Start) -> None:
    """Each is replaced, the others stay; children leave signals to the manager."""
    run = start(checkpoint__every=500, evaluation__every=500, supervision__hung_seconds=60.0)
    run.wait_until_it_learns()
    before = run.children()
    assert before.keys() == {"learner_0", "actor_0", "evaluator_0"}
    for pid in before.values():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)
    run.wait_until_it_learns(500)
    assert run.children() == before, "children must leave these to the manager"

    run.kill_child("actor_0")
    run.wait_for(lambda: run.children().get("actor_0", before["actor_0"]) != before["actor_0"])
    run.wait_until_it_works("actor_0")
    assert run.news == ["actor_0: killed by SIGKILL; restart 1 of 10 in 0.5 s"]
    assert run.news[0] in log_of(run)

    before = run.children()
    eventually(lambda: newest(run.out) is not None, 10)  # a whole one
    run.kill_child("learner_0")
    run.wait_for(lambda: run.statuses[-1]["restarts"]["learner"] == 1)
    assert run.news[-1].startswith("learner: killed by SIGKILL; ")
    run.wait_for(lambda: run.children().get("learner_0", before["learner_0"]) != before["learner_0"])
    run.wait_until_it_learns()
    after = run.children()
    assert {name for name in before if before[name] != after[name]} == {"learner_0"}

    os.kill(processes(run.pid)["launcher"], signal.SIGKILL)
    run.wait_for(lambda: len(run.news) > 2)
    run.wait_for(lambda: run.children().keys() == before.keys())
    run.wait_until_it_works("actor_0")
    assert {name for name, pid in run.children().items() if pid == after[name]} == {"learner_0"}

    run.send(signal.SIGINT, group=True)  # as a terminal does
    result = run.ended(within_s=15)
    assert (result["reason"], run.code) == ("SIGINT", 128 + signal.SIGINT)
    assert json.loads((run.out / "result.json").read_text())["state"] == "stopped"
    assert_saved(run, result)
    rows = [json.loads(line) for line in (run.out / "metrics.jsonl").read_text().splitlines()]
    steps = [row["env_steps"] for row in rows if row["source"] == "learner"]
    assert steps == sorted(steps), "its successor began anew"


def test_a_second_signal_kills_at_once_what_does_not_answer(start: Start) -> None:
    run = start()
    run.wait_until_it_learns()
    run.kill_child("learner_0", signal.SIGSTOP)
    run.send(signal.SIGTERM)
    time.sleep(0.3)
    assert run.running
    run.send(signal.SIGINT)
    result = run.ended(within_s=5)
    assert (result["reason"], result["weights"]) == ("SIGINT", "")
    assert not (run.out / "weights.safetensors").exists()


def test_a_signal_while_starting_leaves_nothing_behind(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(5)\nlook = print\n")
    run = start(learner__callback="slow:look")  # so that the learner is not ready when the signal comes
    run.wait_for(run.children)
    run.send(signal.SIGINT)
    result = run.ended(within_s=10)
    assert (result["reason"], result["env_steps"], result["weights"]) == ("SIGINT", 0, "")
    assert "Traceback" not in log_of(run)


def says(run: Program, pattern: str) -> bool:
    return re.search(pattern, log_of(run)) is not None


LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (manager|learner|launcher|actor_\d+|evaluator): .*")


@pytest.mark.slow
def test_everything_is_in_the_log_while_the_run_goes_on_and_stays_when_all_are_killed(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "talks.py").write_text(TALKS)
    run = start(environment__wrappers=("talks:Talks",), actors__count=2, backoff_s=0.05, supervision__restarts=100)
    run.wait_until_it_learns()
    words = ("printed in python", "written past it", "said by a program", "Segmentation fault", "in step")
    for name in ("actor_0", "actor_1"):
        for word in words:
            run.wait_for(functools.partial(says, run, f" {name}: .*{word}"))
    run.wait_for(lambda: " learner: learner on cpu" in log_of(run))
    run.kill_child("learner_0", signal.SIGUSR1)
    run.wait_for(lambda: re.search(r" learner: Current thread .*", log_of(run)))
    run.send(signal.SIGKILL)
    run.assert_nothing_left(within_s=5)
    assert [line for line in log_of(run).splitlines() if not LINE.fullmatch(line)] == []


TALKS = """
import faulthandler, os, subprocess, sys
import gymnasium

class Talks(gymnasium.Wrapper):
    steps = 0
    def step(self, action):
        Talks.steps += 1
        sys.stdout.write("printed ")
        print("in python", Talks.steps)
        if Talks.steps == 20:
            os.write(1, b"written past it\\n")
            subprocess.run("echo said by a program; echo and again >&2", shell=True)
        if Talks.steps == 2000:
            faulthandler._sigsegv()
        return super().step(action)
"""
