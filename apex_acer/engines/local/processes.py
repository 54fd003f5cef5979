"""The local engine: its processes are started by the launcher, watched through pipes, and end with the manager.

Every child has two pipes. Its standard input is the parent-death pipe: the manager holds the other end, and the child ends
when it breaks, whatever ended the manager; a new learner's address and the order to leave arrive through it. The second pipe
carries, as JSON lines, what the child reports (ready, heartbeats, result, error) and what the launcher knows of it (process
id, exit code); its end-of-file tells that the child is gone. What the child prints goes to the run's log (`runlog`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import zmq

from apex_acer.config.runfile import to_dict
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
        self._said = b""
        self._pid = 0  # until it is known
        self._code: int | None = None  # until it is known
        self._ended = self._gone = False
        self.sentinel, saying = os.pipe()
        os.set_blocking(self.sentinel, False)
        hearing, self._telling = os.pipe()
        with self._transcript.open() as file:
            launcher.start([peer.role, str(peer.index), str(private)], hearing, file.fileno(), saying)
        os.close(hearing)
        os.close(saying)
        self.tell(start)
        os.set_blocking(self._telling, False)  # a frozen child must not hold up the manager

    def tell(self, said: dict[str, object]) -> None:
        with contextlib.suppress(OSError):
            os.write(self._telling, json.dumps(said).encode() + b"\n")

    @property
    def alive(self) -> bool:
        """Whether the process runs, or is being started; once it does not, everything that it reported has been read."""
        self.listen()
        return not self._gone

    @property
    def failure(self) -> str:
        """The last lines that it printed, and how it ended; empty if it ended well or still runs."""
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
        """Reads what the child has reported and printed, without waiting."""
        if self._gone:
            return
        self._transcript.copy()
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.sentinel, 65536):
                self._said += data
            self._gone = True
        *lines, self._said = self._said.split(b"\n")
        for line in lines:
            said = json.loads(line)
            self.ready = self.ready or said.get("ready", False)
            self.result = Outcome(**said["result"]) if "result" in said else self.result
            self.config_error = said.get("config_error", self.config_error)
            self.raised = said.get("raised", self.raised)
            self.heartbeats += said.get("heartbeat", False)
            self._ended = self._ended or said.get("ended", False)
            self._pid = said.get("pid", self._pid)
            self._code = said.get("exit", self._code)
        self._gone = self._gone or self._code is not None

    def dump(self) -> None:
        """Sends SIGUSR1, on which Python's fault handler writes the stack of every thread."""
        self._signal(signal.SIGUSR1)

    def dismiss(self) -> None:
        self.tell({"leave": True})

    def pause(self, paused: bool) -> None:
        """Stops the child and what it has started, or lets them go on; safe in a signal handler."""
        if self._pid and not self._gone:
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
        self._gone = True
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
        self._held = private_folder()
        self._private = self._held.path
        self._log = Log(run.folder)
        self._launchers_transcript = Transcript(self._private / "launcher.out", self._log, "launcher")
        self._launcher = self._make_launcher()
        self._waker = Waker()
        self._expect_learner(0)

    def start(self, peer: Peer, incarnations: dict[str, int]) -> Handle:
        """Starts the role's process; a later `wait` notices when it is `ready`."""
        if before := self._handles.pop(peer.name, None):
            before.close()
        if peer.role == "learner" and peer.incarnation:
            self.link.close()
            self._expect_learner(peer.incarnation)
        if not self._launcher.alive:
            self._launcher.close()
            self._launcher = self._make_launcher()
        handle = ProcessHandle(peer, self._start_line(peer, incarnations), self._private, self._launcher, self._log)
        self._handles[peer.name] = handle
        return handle

    def reconnect(self) -> None:
        for handle in self._handles.values():
            handle.tell({"address": self._address})

    def wait(self, timeout_s: float) -> None:
        """Waits until a child reports or ends, a reply comes, `wake` is called or the time has passed."""
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

    def pause(self, paused: bool) -> None:
        """Stops the children, or lets them go on: their process groups do not get what a terminal sends to the manager's."""
        for handle in self._handles.values():
            handle.pause(paused)

    def close(self) -> None:
        """Kills the remaining children, copies the rest of what they printed to the log, and removes the private folder."""
        self._launcher.close()
        for handle in self._handles.values():
            handle.close()
        self._launchers_transcript.copy(to_the_end=True)
        self._log.close()
        self.link.close()
        self._waker.close()
        self._held.remove()

    def _make_launcher(self) -> Launcher:
        return Launcher(self._private / "launcher.out", self._held.lock)

    def _expect_learner(self, incarnation: int) -> None:
        """Gives the learner its own address, so that nothing sent to the previous one reaches it."""
        self._address = f"ipc://{self._private}/inbox.{incarnation}"
        self.link = DealerLink(self._address, MANAGER)

    def _start_line(self, peer: Peer, incarnations: dict[str, int]) -> dict[str, object]:
        run = self._run.of(peer)
        return {
            "config": to_dict(run.config),
            "spec": dataclasses.asdict(run.spec),
            "folder": str(run.folder),
            "run_id": run.run_id,
            "started_at": run.started_at,
            "resume": run.resume,
            "address": self._address,
            "incarnation": peer.incarnation,
            "incarnations": incarnations,
            "path": sys.path,
        }
