"""Real runs by `python -c`, ended by real signals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from apex_acer.policy import load_policy
from apex_acer.runfile import dump_run
from tests.runs import tiny_run

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="processes are looked up in /proc")

PROGRAM = """
import dataclasses, json, sys
import apex_acer
from apex_acer.runfile import load_run

def show(status):
    print(json.dumps({"env_steps": status["env_steps"]}), flush=True)

print(json.dumps({"started": True}), flush=True)
try:
    print(json.dumps(dataclasses.asdict(apex_acer.train(load_run(sys.argv[1]), on_status=show))))
except apex_acer.RunFailed as error:
    print(json.dumps({"failed": str(error)}))
"""
ENDLESS = {"engine": "local", "actors__count": 1, "stop__env_steps": 10**9}


class Program:
    """A process that trains, in a session of its own."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        folder.mkdir()
        self.out = folder / "run"
        (folder / "run.toml").write_text(dump_run(tiny_run(self.out, **(ENDLESS | changes))))
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder / "run.toml")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.children: dict[str, int] = {}
        self.private = Path()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for_children(self) -> None:
        """Until a child runs Python; then notes every child and the private folder."""
        eventually(lambda: self._look(), 30)

    def wait_until_it_learns(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if json.loads(line).get("env_steps"):
                assert self._look()
                return
        raise AssertionError(self._process.communicate()[1])

    def _look(self) -> bool:
        listed = subprocess.run(
            ["ps", "-A", "-ww", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
        ).stdout
        for line in listed.splitlines():
            pid, parent, *args = line.split()
            if int(parent) == self.pid and "apex_acer.engines.local.child" in args:
                role, index = args[-3:-1]
                self.children[f"{role}_{index}"] = int(pid)
                self.private = Path(os.readlink(f"/proc/{pid}/fd/1")).parent
        return bool(self.children)

    def ended(self, within_s: float) -> dict[str, Any]:
        """What it printed last; it must end in time and leave nothing behind."""
        output, errors = self._process.communicate(timeout=within_s)
        assert errors == ""
        self.assert_nothing_left(0.5)
        return dict(json.loads(output.splitlines()[-1]))

    def assert_nothing_left(self, within_s: float) -> None:
        eventually(lambda: not any(runs(pid) for pid in self.children.values()), within_s)
        assert self.private.name.startswith("apex-acer-")
        eventually(lambda: not self.private.exists(), 0.5)

    def kill(self) -> None:
        for pid in (self.pid, *self.children.values()):
            if runs(pid):
                os.kill(pid, signal.SIGKILL)
        self._process.communicate()
        if self.private.name.startswith("apex-acer-"):  # nobody was left to do it
            shutil.rmtree(self.private, ignore_errors=True)


def runs(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(probe: Callable[[], bool], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not probe():
        assert time.monotonic() < deadline, f"not within {within_s} s"
        time.sleep(0.02)


Start = Callable[..., Program]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    programs: list[Program] = []

    def start(**changes: Any) -> Program:
        programs.append(Program(tmp_path / str(len(programs)), **changes))
        return programs[-1]

    yield start
    for program in programs:
        program.kill()


def to_manager(program: Program, number: int) -> None:
    os.kill(program.pid, number)


def to_group(program: Program, number: int) -> None:
    os.killpg(program.pid, number)


@pytest.mark.parametrize(
    ("send", "number"),
    [(to_manager, signal.SIGINT), (to_group, signal.SIGINT), (to_manager, signal.SIGTERM)],
)
def test_a_signal_saves_and_leaves_nothing_behind(start: Start, send: Any, number: signal.Signals) -> None:
    # an evaluator that waits for weights while the run ends
    program = start(evaluation__every=10**8)
    program.wait_until_it_learns()
    assert program.children.keys() == {"learner_0", "actor_0", "evaluator_0"}
    send(program, number)
    result = program.ended(within_s=10)
    assert result["reason"] == number.name
    assert result["env_steps"] > 0
    assert load_policy(result["weights"]).metadata["env_steps"] == result["env_steps"]
    assert "Traceback" not in (program.out / "log.txt").read_text()


def test_a_second_signal_kills_at_once_what_does_not_answer(start: Start) -> None:
    program = start()
    program.wait_until_it_learns()
    os.kill(program.children["learner_0"], signal.SIGSTOP)
    to_manager(program, signal.SIGINT)
    time.sleep(0.3)
    assert runs(program.pid)
    to_manager(program, signal.SIGINT)
    result = program.ended(within_s=5)
    assert (result["reason"], result["weights"]) == ("SIGINT", "")
    assert not (program.out / "weights.safetensors").exists()


def test_a_signal_while_starting_leaves_nothing_behind(start: Start) -> None:
    program = start()
    program.wait_for_children()
    to_manager(program, signal.SIGINT)
    result = program.ended(within_s=10)
    assert (result["reason"], result["env_steps"], result["weights"]) == ("SIGINT", 0, "")
    assert "Traceback" not in (program.out / "log.txt").read_text()


def test_children_leave_when_the_manager_is_killed(start: Start) -> None:
    program = start(evaluation__every=10**8)
    program.wait_until_it_learns()
    to_manager(program, signal.SIGKILL)
    program.assert_nothing_left(within_s=5)


def test_children_ignore_what_is_the_manager_s_and_a_killed_actor_is_named(start: Start) -> None:
    program = start()
    program.wait_until_it_learns()
    for pid in program.children.values():
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    for _ in range(2):
        program.wait_until_it_learns()
    assert all(runs(pid) for pid in program.children.values())
    os.kill(program.children["actor_0"], signal.SIGKILL)
    failed = program.ended(within_s=10)["failed"]
    assert "actor_0" in failed
    assert "SIGKILL" in failed
    assert (program.out / "weights.safetensors").exists(), "what was learned before is lost"
