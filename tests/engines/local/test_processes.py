"""Real runs by `python -c`, whose processes are killed and frozen, and which are ended by real signals."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    ("number", "group"),
    [
        pytest.param(signal.SIGINT, True, marks=pytest.mark.slow),
        (signal.SIGTERM, False),
        pytest.param(signal.SIGINT, False, marks=pytest.mark.chaos),
        pytest.param(signal.SIGHUP, True, marks=pytest.mark.chaos),
    ],
)
def test_a_signal_saves_and_leaves_nothing_behind(start: Start, number: signal.Signals, group: bool) -> None:
    # an evaluator that waits for weights while the run ends
    run = start(evaluation__every=10**8)
    run.wait_until_it_learns()
    before = run.children()
    assert before.keys() == {"learner_0", "actor_0", "evaluator_0"}
    for pid in before.values():
        for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, one)
    for _ in range(2):
        run.wait_until_it_learns()
    assert run.children() == before, "children must leave these to the manager"
    run.send(number, group)
    result = run.ended(within_s=10)
    assert (result["reason"], run.code) == (number.name, 128 + number)
    assert json.loads((run.out / "result.json").read_text())["state"] == "stopped"
    assert_saved(run, result)


def test_a_second_signal_kills_at_once_what_does_not_answer(start: Start) -> None:
    run = start()
    run.wait_until_it_learns()
    run.kill_child("learner_0", signal.SIGSTOP)
    run.send(signal.SIGINT)
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


def test_children_leave_when_the_manager_is_killed_even_a_frozen_one(start: Start) -> None:
    run = start(evaluation__every=10**8)
    run.wait_until_it_learns()
    run.kill_child("actor_0", signal.SIGSTOP)
    run.send(signal.SIGKILL)
    run.assert_nothing_left(within_s=5)


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
        run.wait_for(lambda name=name: all(re.search(f" {name}: .*{word}", log_of(run)) for word in words))
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
KILLED, FROZEN = signal.SIGKILL, signal.SIGSTOP
ENDS = [
    (KILLED,),
    pytest.param((KILLED, FROZEN), marks=pytest.mark.chaos),
]  # what befalls one incarnation after the other
ENDS_IDS = ["killed", "killed, then frozen"]


def hung_s(ends: tuple[signal.Signals, ...]) -> float:
    """Short only where somebody is frozen: who has to share the cores must not be taken for that."""
    return 5.0 if FROZEN in ends else 60.0


@pytest.mark.parametrize("ends", ENDS, ids=ENDS_IDS)
def test_an_actor_and_a_launcher_that_end_are_replaced_while_the_run_goes_on(
    start: Start, ends: tuple[signal.Signals, ...]
) -> None:
    run = start(supervision__hung_seconds=hung_s(ends))
    run.wait_until_it_learns()
    for restarts, number in enumerate(ends, 1):
        gone = run.children()["actor_0"]
        run.kill_child("actor_0", number)
        run.wait_for(lambda restarts=restarts: run.statuses[-1]["restarts"]["actor_0"] == restarts)
        run.wait_until_it_learns()
        run.wait_for(lambda gone=gone: run.children().get("actor_0", gone) != gone)
        run.wait_until_it_works("actor_0")
    news = [
        "actor_0: killed by SIGKILL; restart 1 of 10 in 0.5 s",
        "actor_0: no progress for 5 s (supervision.hung_seconds); restart 2 of 10 in 1 s",
    ]
    assert run.news == news[: len(ends)]
    assert set(run.news) <= {line.split(" ", 3)[3] for line in log_of(run).splitlines() if "restart" in line}
    steps = [status["env_steps"] for status in run.statuses]
    assert steps == sorted(steps)
    before = run.children()
    os.kill(processes(run.pid)["launcher"], signal.SIGKILL)
    run.wait_for(lambda: len(run.news) > len(ends))
    run.wait_for(lambda: run.children().keys() == before.keys())
    run.wait_until_it_works("actor_0")
    run.wait_until_it_learns()
    after = run.children()
    assert {name for name in before if before[name] == after[name]} == {"learner_0"}
    run.send(signal.SIGINT)
    assert_saved(run, run.ended(within_s=10))


def test_an_actor_that_may_not_be_replaced_ends_the_run_which_saves_first(start: Start) -> None:
    run = start(supervision__restarts=0)
    run.wait_until_it_learns()
    run.kill_child("actor_0")
    failed = run.ended(within_s=10)["failed"]
    assert "actor_0: killed by SIGKILL" in failed
    assert "supervision.restarts allows 0" in failed.splitlines()[-1]
    assert run.code == 1
    assert (run.out / "weights.safetensors").exists(), "what was learned before is lost"


@pytest.mark.chaos
@pytest.mark.parametrize("when", ["in backoff", "hung"])
def test_a_signal_while_an_actor_is_away(start: Start, when: str) -> None:
    run = start(actors__count=2, backoff_s=60.0)
    run.wait_until_it_learns()
    run.kill_child("actor_0", signal.SIGKILL if when == "in backoff" else signal.SIGSTOP)
    if when == "in backoff":
        run.wait_for(lambda: run.news)
    run.send(signal.SIGTERM, group=True)
    started = time.monotonic()
    assert_saved(run, run.ended(within_s=10))
    assert time.monotonic() - started < 5


@pytest.mark.slow
def test_a_learner_without_a_checkpoint_ends_the_run_when_it_is_killed(start: Start) -> None:
    run = start(checkpoint__every=0)
    run.wait_until_it_learns()
    run.kill_child("learner_0")
    failed = run.ended(within_s=10)["failed"]
    assert failed.endswith("learner: killed by SIGKILL; there is no checkpoint to continue from")
    assert run.code == 1


def learner_steps(run: Program) -> list[int]:
    rows = [json.loads(line) for line in (run.out / "metrics.jsonl").read_text().splitlines()]
    return [row["env_steps"] for row in rows if row["source"] == "learner"]


@pytest.mark.parametrize("ends", ENDS, ids=ENDS_IDS)
def test_a_learner_that_ends_goes_on_from_the_checkpoint_without_losing_the_actors(
    start: Start, ends: tuple[signal.Signals, ...]
) -> None:
    run = start(checkpoint__every=500, supervision__hung_seconds=hung_s(ends), evaluation__every=500)
    run.wait_until_it_learns()
    peers = {name: pid for name, pid in run.children().items() if name != "learner_0"}
    for restarts, number in enumerate(ends, 1):
        run.wait_for(lambda: run.statuses[-1]["env_steps"] > 500)
        eventually(lambda: newest(run.out) is not None, 10)  # a whole one
        gone = run.children()["learner_0"]
        run.kill_child("learner_0", number)
        run.wait_for(lambda restarts=restarts: run.statuses[-1]["restarts"]["learner"] == restarts)
        run.wait_for(lambda gone=gone: run.children().get("learner_0", gone) != gone)
        run.wait_until_it_learns()
    assert {name: pid for name, pid in run.children().items() if name != "learner_0"} == peers
    news = ["learner: killed by SIGKILL", "learner: no progress for 5 s (supervision.hung_seconds)"]
    assert [line.split(";")[0] for line in run.news] == news[: len(ends)]
    run.send(signal.SIGINT)
    assert_saved(run, run.ended(within_s=10))
    assert learner_steps(run) == sorted(learner_steps(run)), "its successor began anew"


@pytest.mark.slow
def test_a_signal_while_the_learner_is_away(start: Start) -> None:
    run = start(checkpoint__every=500, backoff_s=60.0)
    run.wait_for(lambda: run.statuses and run.statuses[-1]["env_steps"] > 1000)
    run.kill_child("learner_0")
    run.wait_for(lambda: run.news)
    run.send(signal.SIGINT, group=True)
    result = run.ended(within_s=5)
    assert (result["reason"], result["weights"]) == ("SIGINT", "")


@pytest.mark.chaos
def test_a_frozen_evaluator_is_replaced_and_evaluations_go_on(start: Start) -> None:
    run = start(evaluation__every=500, supervision__evaluation_minutes=5 / 60)

    def evaluated_at() -> float:
        return max(status["rows"].get("evaluator", {}).get("eval_env_steps", 0) for status in run.statuses)

    run.wait_for(lambda: run.statuses and evaluated_at())
    run.kill_child("evaluator_0", signal.SIGSTOP)
    run.wait_for(lambda: run.statuses[-1]["restarts"]["evaluator"] == 1)
    before = evaluated_at()
    run.wait_for(lambda: evaluated_at() > before)
    assert run.news == ["evaluator: no progress for 5 s (supervision.evaluation_minutes); restart 1 of 10 in 0.5 s"]
    run.send(signal.SIGINT)
    assert_saved(run, run.ended(within_s=10))
