"""Processes of the local engine: started by `python -m`, watched through a pipe, gone with their parent.

Every child has two pipes. Its standard input is the lifeline: the manager holds the other end, and a child leaves when it
breaks, however the manager ended. The second carries what the child has to say (ready, result, configuration error) as
JSON lines, and its end-of-file is the sentinel of the child's death. Standard output and error go to a file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import zmq

from apex_acer.engines.engine import Engine, Handle, Run
from apex_acer.engines.local.transport import DealerLink, Waker
from apex_acer.messages import Peer
from apex_acer.result import TrainResult
from apex_acer.runfile import to_dict

MANAGER = Peer("manager", 0, 0)
GOODBYE = b"."  # a lifeline that breaks without it means that the manager died
KEPT_BYTES = 2**32  # of freed memory that a process may keep for its next tensors
KILL_S = 2.0  # a killed process is gone within this, or stuck in the kernel


class ProcessHandle(Handle):
    """A child process."""

    def __init__(self, peer: Peer, start: dict[str, object], threads: int, output: Path) -> None:
        super().__init__(peer)
        self._output = output
        self._said = b""
        self._ended = False
        self.sentinel, writing = os.pipe()
        os.set_blocking(self.sentinel, False)
        command = [sys.executable, "-m", "apex_acer.engines.local.child", peer.role, str(peer.index), str(writing)]
        with output.open("wb") as file, _blocked_sigint():
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=file, stderr=file, pass_fds=[writing], env=_environment(threads)
            )
        os.close(writing)
        assert self._process.stdin is not None
        self._lifeline: BinaryIO = self._process.stdin  # type: ignore[assignment]
        with contextlib.suppress(BrokenPipeError):
            self._lifeline.write(json.dumps(start).encode() + b"\n")
            self._lifeline.flush()

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    @property
    def failure(self) -> str:
        """What it printed last, and how it ended; empty where it ended well or still runs."""
        code = self._process.poll()
        self.listen()
        if code is None or self._ended:
            return ""
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"{self.printed().strip()}\n{self.peer.name}: {how}".strip()

    def printed(self) -> str:
        """The last of its standard output and error."""
        with self._output.open("rb") as file:
            file.seek(max(0, self._output.stat().st_size - 20_000))
            return file.read().decode(errors="replace")

    def listen(self) -> None:
        """Takes what the child has said, without waiting."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.sentinel, 65536):
                self._said += data
        *lines, self._said = self._said.split(b"\n")
        for line in lines:
            said = json.loads(line)
            self.ready = self.ready or said.get("ready", False)
            self.result = TrainResult(**said["result"]) if "result" in said else self.result
            self.config_error = said.get("config_error", self.config_error)
            self._ended = self._ended or said.get("ended", False)

    def release(self) -> None:
        """Says goodbye and breaks the lifeline: the child leaves on its own."""
        with contextlib.suppress(OSError, ValueError):  # the child, or the pipe, is gone already
            self._lifeline.write(GOODBYE)
            self._lifeline.close()

    def kill(self) -> None:
        """SIGKILL, and waits for the process to be gone."""
        self.release()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_S)

    def close(self) -> None:
        """Frees the pipe; the process must have ended."""
        os.close(self.sentinel)


class LocalEngine(Engine):
    """Spawned processes around one inbox, at a socket in a private folder."""

    link: DealerLink

    def __init__(self, run: Run) -> None:
        self._run = run
        self._handles: list[ProcessHandle] = []
        # an ipc path has 107 characters at most, so it is never under the run's folder; mkdtemp gives mode 0700
        self._private = Path(tempfile.mkdtemp(prefix="apex-acer-", dir="/tmp"))
        self._address = f"ipc://{self._private}/inbox"
        self._waker = Waker()
        self.link = DealerLink(self._address, MANAGER)

    def start(self, peer: Peer) -> Handle:
        """Starts the role's process; whether it is `ready` shows after a `wait`."""
        run = self._run
        threads = self._threads(peer)
        start = {
            "config": to_dict(run.config),
            "spec": dataclasses.asdict(run.spec),
            "folder": str(run.folder),
            "run_id": run.run_id,
            "started_at": run.started_at,
            "address": self._address,
            "incarnation": peer.incarnation,
            "threads": threads,
            "private": str(self._private),
            "path": sys.path,
        }
        handle = ProcessHandle(peer, start, threads, self._private / f"{peer.name}.{peer.incarnation}.out")
        self._handles.append(handle)
        return handle

    def wait(self, timeout_s: float) -> None:
        """Waits for a child to speak or to end, for a reply, for `wake`, or for the time to pass."""
        poller = zmq.Poller()
        for handle in self._handles:
            if handle.alive:
                poller.register(handle.sentinel, zmq.POLLIN)
        poller.register(self._waker.woken, zmq.POLLIN)
        poller.register(self.link.socket, zmq.POLLIN)
        ready = dict(poller.poll(int(1000 * timeout_s)))
        if self._waker.woken in ready:
            self._waker.clear()
        for handle in self._handles:
            handle.listen()

    def wake(self) -> None:
        """Ends a `wait`."""
        self._waker.wake()

    def close(self) -> None:
        """Ends the children, gives their output to the run's log and removes the private folder."""
        for handle in self._handles:
            handle.release()
        deadline = time.monotonic() + KILL_S
        while any(handle.alive for handle in self._handles) and time.monotonic() < deadline:
            self.wait(0.1)
        for handle in self._handles:
            handle.kill()
            handle.listen()
            handle.close()
        self._keep_output()
        self.link.close()
        self._waker.close()
        shutil.rmtree(self._private, ignore_errors=True)

    def _keep_output(self) -> None:
        with (self._run.folder / "log.txt").open("a", encoding="utf-8") as file:
            for handle in self._handles:
                if printed := handle.printed():
                    file.write(f"── {handle.peer.name} ──\n{printed}")

    def _threads(self, peer: Peer) -> int:
        """Threads for a role on the CPU: what the configuration says, or its share of the cores present.

        Convolutions gain from every core, because actors wait for the learner more than they run; small vectors lose.
        """
        cores, config = os.cpu_count() or 1, self._run.config
        if peer.role == "learner":
            return config.learner.threads or (cores if self._run.spec.is_image else 1)
        return config.actors.threads or max(1, cores // (2 * config.actors.count))


def _environment(threads: int) -> dict[str, str]:
    """The child's environment variables: thread limits must be there before torch is imported.

    Memory limits keep glibc from giving large tensors back to the kernel at every update: mapping and clearing the same
    pages again cost a third of the learner's processor time.
    """
    limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    limits |= dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), str(KEPT_BYTES))
    return {**os.environ, **limits, "OMP_WAIT_POLICY": "PASSIVE", "PYTHONUNBUFFERED": "1"}


@contextlib.contextmanager
def _blocked_sigint() -> Iterator[None]:
    """A child started inside begins with SIGINT blocked, and unblocks it when it ignores it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
