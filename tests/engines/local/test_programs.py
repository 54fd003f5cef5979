"""Runs whose environments start programs, as simulators are: who ends them, and when."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs import Program, eventually, processes_of, program

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="processes are looked up in /proc")

SIMULATOR = """
import atexit, multiprocessing, os, pathlib, subprocess, sys, time
import gymnasium

FOLDER = pathlib.Path(__file__).parent

class Simulator(gymnasium.Wrapper):
    '''Games without end beside three programs: one to be terminated, one that is forgotten, and a fork.'''
    def __init__(self, env):
        super().__init__(env)
        forgotten = [["sleep", "987"]] if "_" in name() else []  # not in the check before the run
        self.programs = [subprocess.Popen(command) for command in [["sleep", "987"], *forgotten]]
        self.fork = multiprocessing.get_context("fork").Process(target=time.sleep, args=(987,))
        if "{engine}" == "local":  # Ray does not notice a death before the last fork is gone
            self.fork.start()
        atexit.register(self.note, "exit")
    def step(self, action):
        obs, reward, *_ = super().step(action)
        time.sleep(0.002)
        return obs, reward, False, False, {}
    def close(self):
        if self.fork.pid:
            self.fork.terminate()
            self.fork.join()
        self.programs[0].terminate()
        self.programs[0].wait()
        self.note("close")
        super().close()
    def note(self, what):
        (FOLDER / f"{name()}.{what}").touch()

def name():
    return pathlib.Path("/proc/self/comm").read_text().strip()
"""


@contextlib.contextmanager
def simulated(
    folder: Path, monkeypatch: pytest.MonkeyPatch, engine: str = "local", **changes: object
) -> Iterator[Program]:
    """A run in the middle of its first evaluation."""
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    (folder / "simulator.py").write_text(SIMULATOR.replace("{engine}", engine))
    environment = {"environment__wrappers": ("simulator:Simulator",), "actors__environments": 1}
    counts = {"actors__count": 1, "stop__env_steps": 10**9, "evaluation__every": 100, "evaluation__environments": 1}
    with program(folder / "0", **({"engine": engine} | environment | counts | changes)) as run:
        run.wait_until_it_learns()
        run.wait_for(lambda: simulators(run) >= 4)
        yield run


def simulators(run: Program) -> int:
    return list(processes_of(run.pid).values()).count("sleep")


def actor(run: Program) -> int:
    """The process of the actor, which comes before its fork of the same name."""
    return min(pid for pid, name in processes_of(run.pid).items() if name == "actor_0")


def closed(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if "_" in path.name and path.suffix in (".close", ".exit")}


def test_environments_are_closed_even_in_an_evaluation_and_exit_handlers_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with simulated(tmp_path, monkeypatch) as run:
        run.send(signal.SIGINT, group=True)
        assert run.ended(within_s=10)["reason"] == "SIGINT"
        assert closed(tmp_path) == {
            f"{name}.{what}" for name in ("actor_0", "evaluator_0") for what in ("close", "exit")
        }
        assert "Traceback" not in (run.out / "log.txt").read_text()


def test_programs_end_with_their_role_and_all_of_them_with_a_killed_manager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with simulated(tmp_path, monkeypatch, backoff_s=60.0) as run:
        os.kill(actor(run), signal.SIGKILL)
        eventually(lambda: simulators(run) == 2, 10)  # the evaluator's
        evaluator = min(pid for pid, name in processes_of(run.pid).items() if name == "evaluator_0")
        os.kill(evaluator, signal.SIGSTOP)  # even who is frozen leaves
        run.send(signal.SIGKILL)
        run.assert_nothing_left(within_s=10)
