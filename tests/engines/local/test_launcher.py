"""Real launchers, by which roles are started that end at once, or wait until they are killed."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from apex_acer.config.runfile import to_dict
from apex_acer.engines.local.launcher import LEAVE_S, Launcher, Server
from apex_acer.manager.manager import RunFailed, train
from tests.processes import children
from tests.programs import eventually
from tests.runs import CARTPOLE, tiny_run

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="processes are looked up in /proc")


A_RUN = {"run_id": "run", "spec": dataclasses.asdict(CARTPOLE), "started_at": 0.0, "resume": False}


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
        told = {"address": "ipc:///nobody", "path": sys.path, "folder": self._folder}
        config = {"config": {"logging": {"level": "info"}}}
        os.write(self._lifeline, json.dumps(told | config | start).encode() + b"\n")

    def tell_of(self, module: str) -> None:
        """Of a run whose environment is in `module`, which is in the folder."""
        config = to_dict(tiny_run(environment__id=f"{module}:Any-v0"))
        self.tell(path=[self._folder, *sys.path], config=config, peer=["actor", 0, 0], **A_RUN)

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


def launcher_of(role: Started) -> int:
    """The process id of the launcher that has started `role`."""
    (pid,) = [pid for pid in children(os.getpid()) if role.pid in children(pid)]
    return pid


ASKING = "import subprocess\nsubprocess.run(['cat'], check=True, timeout=9)\nbreakpoint()\n"
DRAWING = """
import random, numpy
raise RuntimeError(f"drew {random.random()} {numpy.random.random()}")
"""


@pytest.mark.parametrize("forks", [pytest.param(True, id="forked"), pytest.param(False, id="spawned")])
def test_what_becomes_of_roles_is_told_and_closing_ends_them(
    tmp_path: Path, forks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)  # Ray sets it
    (tmp_path / "asking.py").write_text(ASKING)
    launcher = Launcher(tmp_path / "launcher.out", forks=forks)
    learner = Started(launcher, tmp_path, "learner", 0)
    refused, killed, asking, waiting = actors = [Started(launcher, tmp_path, "actor", index) for index in range(4)]
    for role, name in (learner, "learner_0"), (waiting, "actor_3"):
        comm = Path(f"/proc/{role.pid}/comm")
        eventually(lambda comm=comm, name=name: comm.read_text().strip() == name, 10)  # type: ignore[misc]
    if forks:
        tasks = Path(f"/proc/{launcher_of(learner)}/task")
        assert len(list(tasks.iterdir())) == 1, "a fork copies one thread"

    refused.tell()  # without all that it needs
    said = refused.ended()
    assert said == {"pid": said["pid"], "raised": "KeyError: 'run_id'", "exit": 1}
    assert refused.printed.rstrip().endswith("KeyError: 'run_id'")
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.ended()["exit"] == -signal.SIGKILL
    asking.tell_of("asking")  # a program that reads and a debugger wait for no terminal
    assert "nothing can be typed into this process; debug with --engine serial" in asking.ended()["config_error"]

    assert "exit" not in learner.said
    launcher.close()
    assert not launcher.alive
    assert [role.ended()["exit"] for role in (learner, waiting)] == [-signal.SIGKILL] * 2
    assert not [role.pid for role in (learner, *actors) if Path(f"/proc/{role.pid}").exists()]
    assert (tmp_path / "launcher.out").read_text() == ""


def test_a_role_for_which_there_is_no_room_ends_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    ours, theirs = socket.socketpair()
    with ours, theirs, contextlib.ExitStack() as afterwards:
        afterwards.callback(signal.signal, signal.SIGCHLD, signal.getsignal(signal.SIGCHLD))
        afterwards.callback(signal.set_wakeup_fd, -1)
        server, (hearing, saying) = Server(theirs, forks=True), os.pipe()
        role = [os.open(os.devnull, os.O_RDWR), os.open(os.devnull, os.O_RDWR), saying]
        socket.send_fds(ours, [json.dumps(["actor", "0", str(tmp_path)]).encode()], role)
        for number in role:
            os.close(number)
        assert server.serve()
        assert os.read(hearing, 99) == b"", "its pipe is at its end"
        os.close(hearing)
    assert "Resource temporarily unavailable" in capsys.readouterr().err


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
    os.kill(launcher_of(actor), signal.SIGSTOP)
    started = time.monotonic()
    launcher.close()
    assert time.monotonic() - started < 2 * LEAVE_S
    eventually(lambda: actor.gone, 10)
    assert "exit" not in actor.said
    assert not launcher.alive


def test_nobody_starts_at_a_launcher_that_is_gone(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path / "launcher.out")
    before = Started(launcher, tmp_path, "actor", 0)
    os.kill(launcher_of(before), signal.SIGKILL)
    eventually(lambda: not launcher.alive, 20)
    after = Started(launcher, tmp_path, "actor", 1)
    eventually(lambda: after.gone, 20)  # once what `before` is forked from has closed the socket, too
    launcher.close()


def test_what_a_launcher_says_that_cannot_begin_is_the_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\necho No module named apex_acer\nexit 1\n")
    (tmp_path / "python").chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(RunFailed) as raised:
        train(tiny_run(tmp_path / "run", engine="local"))
    said, failed = str(raised.value).split("learner: ended with the launcher\n")
    assert set(said.splitlines()) == {"No module named apex_acer"}  # once or more: each launcher that was tried says it
    assert failed == "learner: ended with the launcher; there is no checkpoint to continue from"


def test_forks_draw_different_numbers_and_nothing_is_left_of_a_manager_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "drawing.py").write_text(DRAWING)
    launcher = Launcher(tmp_path / "launcher.out", forks=True)
    roles = [Started(launcher, tmp_path, role, 0) for role in ("learner", "actor")]
    for role in roles:
        os.kill(role.pid, signal.SIGSTOP)
    drawn = []
    for index in (1, 2):
        actor = Started(launcher, tmp_path, "actor", index)
        actor.tell_of("drawing")
        drawn += actor.ended()["config_error"].partition("drew ")[2].partition(",")[0].split()
    assert len(set(drawn)) == len(drawn) == 4
    launcher._socket.close()  # as that of a killed manager is
    assert launcher._process.wait(60) == 0
    assert [role.ended()["exit"] for role in roles] == [-signal.SIGKILL] * 2
    assert not (tmp_path / "private").exists()


def test_what_an_optimizer_needs_is_no_compiler() -> None:
    """torch's own way imports it, for a second and 100 MB."""
    source = """
import sys
import torch
from apex_acer.algorithms.algorithm import Group
from apex_acer.learner.optimizer import Optimizer
from tests.runs import tiny_run
groups = {"network": Group(list(torch.nn.Linear(2, 2).parameters()))}
for name in "rmsprop", "adam":
    optimizer = Optimizer(tiny_run(optimizer__name=name), groups)
    assert optimizer.step(torch.zeros(()), 0, optimizer.due(0))[1]
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", source], check=True, timeout=60)
