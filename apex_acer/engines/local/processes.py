"""The local engine: its processes are started by the launcher, watched through pipes, and end with the manager.

Every child has two pipes of JSON lines. Its standard input is the parent-death pipe: the manager holds the other end, and
the child ends when it breaks; it brings the start, a new learner's address, and the order to leave. The second pipe carries
what the child reports (ready, heartbeats, result, error) and what the launcher knows of it (process id, exit code); its
end-of-file tells that the child is gone. What the child prints goes to the run's log (`runlog`).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

import zmq

from apex_acer.engines.engine import Engine, Handle, Run
from apex_acer.engines.local.launcher import Launcher
from apex_acer.engines.local.transport import DealerLink
from apex_acer.engines.machine import private_folder
from apex_acer.protocol.messages import Outcome, Peer
from apex_acer.storage.runlog import Log, Transcript
from apex_acer.system.process import kill_group
from apex_acer.system.signals import Waker

MANAGER = Peer("manager", 0, 0)
KILL_S = 2.0  # in which a killed process is gone, unless it is stuck in the kernel


class ProcessHandle(Handle):
    """A process that the launcher starts, and the pipes to it."""

    def __init__(self, peer: Peer, start: dict[str, object], private: Path, launcher: Launcher, log: Log) -> None:
        super().__init__(peer)
        self._launcher = launcher
        self._transcript = Transcript(private / f"{peer.name}.{peer.incarnation}.out", log, peer.name)
        self._unread = b""
        self._pid = 0  # until it is known
        self._code: int | None = None  # until it is known
        self._ended = False
        self.sentinel, reports = os.pipe()
        os.set_blocking(self.sentinel, False)
        stdin, self._telling = os.pipe()
        with self._transcript.open() as file:
            launcher.start([peer.role, str(peer.index), str(private)], stdin, file.fileno(), reports)
        os.close(stdin)
        os.close(reports)
        self.tell(start)
        os.set_blocking(self._telling, False)  # a frozen child must not hold up the manager

    def tell(self, message: dict[str, object]) -> None:
        with contextlib.suppress(OSError):
            os.write(self._telling, json.dumps(message).encode() + b"\n")

    @property
    def failure(self) -> str:
        if self.alive or self._ended:
            return ""
        printed = self._transcript.last().strip()
        if self._code is None:
            printed, how = f"{printed}\n{self._launcher.printed.strip()}".strip(), "ended with the launcher"
        elif self._code < 0:
            how = f"killed by {signal.Signals(-self._code).name}"
        else:
            how = f"exit code {self._code}"
        return f"{printed}\n{self.peer.name}: {how}".strip()

    def listen(self) -> None:
        if not self._alive:
            return
        self._transcript.copy()
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.sentinel, 65536):
                self._unread += data
            self._alive = False  # the pipe is at its end
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            report = json.loads(line)
            self.ready = self.ready or report.get("ready", False)
            self.result = Outcome(**report["result"]) if "result" in report else self.result
            self.config_error = report.get("config_error", self.config_error)
            self.raised = report.get("raised", self.raised)
            self.heartbeats += report.get("heartbeat", False)
            self._ended = self._ended or report.get("ended", False)
            self._pid = report.get("pid", self._pid)
            self._code = report.get("exit", self._code)
        self._alive = self._alive and self._code is None

    def dump(self) -> None:
        self._signal(signal.SIGUSR1)  # on which Python's fault handler writes the stack of every thread

    def dismiss(self) -> None:
        self.tell({"leave": True})

    def pause(self, paused: bool) -> None:
        """Stops the child and what it has started, or lets them go on; safe in a signal handler."""
        if self._pid and self._alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGSTOP if paused else signal.SIGCONT)

    def kill(self) -> None:
        """Sends SIGKILL to the child and what it has started, and waits for the child to be gone."""
        self._signal(signal.SIGKILL, os.killpg)
        deadline = time.monotonic() + KILL_S
        while self.alive and (left := deadline - time.monotonic()) > 0:
            select.select([self.sentinel], [], [], left)

    def close(self) -> None:
        """Ends the process, closes its pipes, and copies the rest of what it printed to the log."""
        self.kill()
        if self._pid and self._code is None:  # the launcher died, too, and left this to the manager
            kill_group(self._pid)
        self._alive = False
        self._transcript.copy(to_the_end=True)
        os.close(self.sentinel)
        os.close(self._telling)

    def _signal(self, number: signal.Signals, send: Callable[[int, int], None] = os.kill) -> None:
        if self.alive and self._pid:
            with contextlib.suppress(ProcessLookupError):
                send(self._pid, number)


class LocalEngine(Engine):
    """One process for each role, around the learner's inbox at a socket in a private folder."""

    restarts = True
    link: DealerLink

    def __init__(self, run: Run) -> None:
        self._run = run
        self._handles: dict[str, ProcessHandle] = {}
        self._folder = private_folder()
        self._private = self._folder.path
        self._log = Log(run.folder)
        self._launchers_transcript = Transcript(self._private / "launcher.out", self._log, "launcher")
        self._start_launcher()
        self._waker = Waker()
        self._expect_learner(0)

    def start(self, peer: Peer, incarnations: dict[str, int]) -> Handle:
        if previous := self._handles.pop(peer.name, None):
            previous.close()
        if peer.role == "learner" and peer.incarnation:
            self.link.close()
            self._expect_learner(peer.incarnation)
        if not self._launcher.alive:
            self._launcher.close()
            self._start_launcher()
        start = self._run.start_of(peer, incarnations, address=self._address)
        handle = ProcessHandle(peer, start, self._private, self._launcher, self._log)
        self._handles[peer.name] = handle
        return handle

    def reconnect(self) -> None:
        for handle in self._handles.values():
            handle.tell({"address": self._address})

    def wait(self, timeout_s: float) -> None:
        poller = zmq.Poller()
        for handle in self._handles.values():
            if handle.alive:
                poller.register(handle.sentinel, zmq.POLLIN)
        poller.register(self._waker.woken, zmq.POLLIN)
        poller.register(self.link.socket, zmq.POLLIN)
        ready = dict(poller.poll(int(1000 * timeout_s)))
        if self._waker.woken in ready:
            self._waker.clear()
        for handle in self._handles.values():
            handle.listen()
        self._launchers_transcript.copy()

    def wake(self) -> None:
        self._waker.wake()

    def pause(self, paused: bool) -> None:  # their process groups do not get what a terminal sends to the manager's
        for handle in self._handles.values():
            handle.pause(paused)

    def close(self) -> None:
        self._launcher.close()
        for handle in self._handles.values():
            handle.close()
        self._launchers_transcript.copy(to_the_end=True)
        self._log.close()
        self.link.close()
        self._waker.close()
        self._folder.remove()

    def _start_launcher(self) -> None:
        self._launcher = Launcher(self._private / "launcher.out", self._folder.lock)

    def _expect_learner(self, incarnation: int) -> None:
        """Gives the learner its own address, so that nothing sent to the previous one reaches it."""
        self._address = f"ipc://{self._private}/inbox.{incarnation}"
        self.link = DealerLink(self._address, MANAGER)
