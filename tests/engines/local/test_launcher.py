"""Real launchers, by which roles are started that end at once, or wait until they are killed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apex_acer.config.runfile import to_dict
from apex_acer.engines.local.launcher import LEAVE_S, Launcher
from apex_acer.manager.manager import RunFailed, train
from tests.processes import children
from tests.programs import eventually
from tests.runs import CARTPOLE, tiny_run

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="processes are looked up in /proc")
MODES = [pytest.param(True, id="forked"), pytest.param(False, id="spawned")]


CONFIG = {"config": {"logging": {"level": "info"}}}
PEER = ["actor", 0, 0]
A_RUN = {"run_id": "run", "spec": dataclasses.asdict(CARTPOLE), "started_at": 0.0, "resume": False, "peer": PEER}


class Started:
    """A role, and what became of it."""

    def __init__(self, launcher: Launcher, folder: Path, role: str, index: int) -> None:
        self._heard = b""
        self._output = folder / f"{role}_{index}.out"
        self._pipe, saying = os.pipe()
        hearing, self._lifeline = os.pipe()
        os.set_blocking(self._pipe, False)
        self._folder = str(folder)
        (folder / "private").mkdir(exist_ok=True)
        with self._output.open("wb") as file:
            launcher.start([role, str(index), str(folder / "private")], hearing, file.fileno(), saying)
        os.close(hearing)
        os.close(saying)

    def tell(self, **start: Any) -> None:
        os.write(
            self._lifeline,
            json.dumps({"address": "ipc:///nobody", "path": sys.path, "folder": self._folder} | CONFIG | start).encode()
            + b"\n",
        )

    @property
    def said(self) -> dict[str, Any]:
        with contextlib.suppress(BlockingIOError):
            self._heard += os.read(self._pipe, 65536)
        said: dict[str, Any] = {}
        for line in self._heard.splitlines():
            said |= json.loads(line)
        return said

    @property
    def pid(self) -> int:
        eventually(lambda: "pid" in self.said, 60)
        return int(self.said["pid"])

    def ended(self) -> dict[str, Any]:
        eventually(lambda: "exit" in self.said, 60)
        return self.said

    @property
    def printed(self) -> str:
        return self._output.read_text()

    @property
    def gone(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            return os.read(self._pipe, 65536) == b""
        return False


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[list[Launcher]]:
    launchers: list[Launcher] = []
    yield launchers
    for launcher in launchers:
        launcher.close()
    assert not [pid for pid in children(os.getpid()) if "launcher" in Path(f"/proc/{pid}/cmdline").read_text()]


@pytest.mark.parametrize("forks", MODES)
def test_what_a_role_raises_and_its_exit_code_are_told(tmp_path: Path, launched: list[Launcher], forks: bool) -> None:
    launched.append(launcher := Launcher(tmp_path / "launcher.out", forks=forks))
    actor = Started(launcher, tmp_path, "actor", 3)
    actor.tell()  # without all that it needs
    said = actor.ended()
    assert said == {"pid": said["pid"], "raised": "KeyError: 'run_id'", "exit": 1}
    assert actor.printed.rstrip().endswith("KeyError: 'run_id'")
    assert (tmp_path / "launcher.out").read_text() == ""


@pytest.mark.parametrize("forks", MODES)
def test_what_kills_a_role_is_told_and_each_has_its_name(tmp_path: Path, launched: list[Launcher], forks: bool) -> None:
    launched.append(launcher := Launcher(tmp_path / "launcher.out", forks=forks))
    actor, learner = Started(launcher, tmp_path, "actor", 3), Started(launcher, tmp_path, "learner", 0)
    for role, name in (actor, "actor_3"), (learner, "learner_0"):
        comm = Path(f"/proc/{role.pid}/comm")
        eventually(lambda comm=comm, name=name: comm.read_text().strip() == name, 10)
    os.kill(actor.pid, signal.SIGKILL)
    assert actor.ended()["exit"] == -signal.SIGKILL
    assert "exit" not in learner.said


@pytest.mark.parametrize("forks", MODES)
def test_closing_ends_what_was_started(tmp_path: Path, forks: bool) -> None:
    launcher = Launcher(tmp_path / "launcher.out", forks=forks)
    roles = [Started(launcher, tmp_path, "learner", 0), Started(launcher, tmp_path, "actor", 0)]
    pids = [role.pid for role in roles]
    launcher.close()
    assert not launcher.alive
    assert [role.ended()["exit"] for role in roles] == [-signal.SIGKILL] * 2
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_what_a_launcher_has_not_got_to_yet_is_never_started(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path / "launcher.out")
    actor = Started(launcher, tmp_path, "actor", 0)  # it still imports
    launcher.close()
    assert not launcher.alive
    assert actor.said.get("exit", -signal.SIGKILL) == -signal.SIGKILL
    eventually(lambda: actor.gone, 10)


def test_a_frozen_launcher_is_killed_and_actors_go_with_it(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path / "launcher.out")
    actor = Started(launcher, tmp_path, "actor", 0)
    pid = actor.pid
    (pid_of_launcher,) = [p for p in children(os.getpid()) if pid in children(p)]
    os.kill(pid_of_launcher, signal.SIGSTOP)
    started = time.monotonic()
    launcher.close()
    assert time.monotonic() - started < 2 * LEAVE_S
    eventually(lambda: actor.gone, 10)
    assert "exit" not in actor.said
    assert not launcher.alive


def test_nobody_starts_at_a_launcher_that_is_gone(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path / "launcher.out")
    before = Started(launcher, tmp_path, "actor", 0)
    (pid,) = [pid for pid in children(os.getpid()) if before.pid in children(pid)]
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not launcher.alive, 20)
    assert Started(launcher, tmp_path, "actor", 1).gone
    launcher.close()


def test_a_launcher_that_forks_has_one_thread(tmp_path: Path, launched: list[Launcher]) -> None:
    launched.append(launcher := Launcher(tmp_path / "launcher.out"))
    actor = Started(launcher, tmp_path, "actor", 0)
    pid = actor.pid
    (pid_of_launcher,) = [p for p in children(os.getpid()) if pid in children(p)]
    assert len(list(Path(f"/proc/{pid_of_launcher}/task").iterdir())) == 1


@pytest.mark.parametrize("forks", MODES)
def test_a_debugger_and_a_program_that_reads_wait_for_no_terminal(
    tmp_path: Path, launched: list[Launcher], forks: bool
) -> None:
    (tmp_path / "asking.py").write_text(
        "import subprocess\nsubprocess.run(['cat'], check=True, timeout=9)\nbreakpoint()\n"
    )
    launched.append(launcher := Launcher(tmp_path / "launcher.out", forks=forks))
    config = to_dict(tiny_run(environment__id="asking:Any-v0"))
    actor = Started(launcher, tmp_path, "actor", 0)
    actor.tell(path=[str(tmp_path), *sys.path], config=config, **A_RUN)
    assert "nothing can be typed into this process; debug with --engine serial" in actor.ended()["config_error"]


def test_what_a_launcher_says_that_cannot_begin_is_the_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\necho No module named apex_acer\nexit 1\n")
    (tmp_path / "python").chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(RunFailed) as raised:
        train(tiny_run(tmp_path / "run", engine="local"))
    said, failed = str(raised.value).split("learner: ended with the launcher\n")
    assert set(said.splitlines()) == {"No module named apex_acer"}  # once or more: each launcher that was tried says it
    assert failed == "learner: ended with the launcher; there is no checkpoint to continue from"


def test_forks_draw_different_numbers(tmp_path: Path, launched: list[Launcher]) -> None:
    (tmp_path / "drawing.py").write_text(
        textwrap.dedent("""
        import random, numpy
        raise RuntimeError(f"drew {random.random()} {numpy.random.random()}")
        """)
    )
    launched.append(launcher := Launcher(tmp_path / "launcher.out"))
    config = to_dict(tiny_run(environment__id="drawing:Any-v0"))
    actors = [Started(launcher, tmp_path, "actor", index) for index in range(2)]
    drawn = []
    for actor in actors:
        actor.tell(path=[str(tmp_path), *sys.path], config=config, **A_RUN)
        drawn.append(actor.ended()["config_error"].partition("drew ")[2].partition(",")[0].split())
    assert all(len(numbers) == 2 for numbers in drawn)
    assert len({number for numbers in drawn for number in numbers}) == 4


@pytest.mark.parametrize("forks", MODES)
def test_nothing_is_left_of_a_manager_that_is_gone_not_even_a_frozen_role(tmp_path: Path, forks: bool) -> None:
    launcher = Launcher(tmp_path / "launcher.out", forks=forks)
    roles = [Started(launcher, tmp_path, role, 0) for role in ("learner", "actor")]
    for role in roles:
        os.kill(role.pid, signal.SIGSTOP)
    launcher._socket.close()  # as that of a killed manager is
    assert launcher._process.wait(60) == 0
    assert [role.ended()["exit"] for role in roles] == [-signal.SIGKILL] * 2
    assert not (tmp_path / "private").exists()


@pytest.mark.parametrize("name", ["rmsprop", "adam"])
def test_what_an_optimizer_needs_is_no_compiler(name: str) -> None:
    """torch's own way imports it, for a second and 100 MB."""
    source = f"""
import sys
import torch
from apex_acer.algorithms.algorithm import Group
from apex_acer.learner.optimizer import Optimizer
from tests.runs import tiny_run
groups = {{"network": Group(list(torch.nn.Linear(2, 2).parameters()))}}
optimizer = Optimizer(tiny_run(optimizer__name="{name}"), groups)
assert optimizer.step(torch.zeros(()), 0, optimizer.due(0))[1]
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", source], check=True, timeout=60)
