"""Commands that run beside each other to their end, and can be waited for, interrupted and killed."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

LIFELINE = "APEX_ACER_LIFELINE"  # environment variable: the descriptor at whose end a command is to end
KILL_S = 2.0  # a killed process is gone within this, or stuck in the kernel


def end_with_the_starter() -> None:
    """Sends this process SIGTERM when the one that started it as a command is gone, however it went."""
    if descriptor := os.environ.pop(LIFELINE, ""):  # what this process starts is not watched for
        os.set_inheritable(int(descriptor), False)
        threading.Thread(target=_end_at, args=(int(descriptor),), name="lifeline", daemon=True).start()


def _end_at(lifeline: int) -> None:
    os.read(lifeline, 1)
    os.kill(os.getpid(), signal.SIGTERM)


class Ended(NamedTuple):
    """A command that has ended."""

    name: str
    code: int
    """Its exit code; minus a signal's number where that killed it."""


class Commands:
    """Child processes, each with a session of its own: a terminal's Ctrl-C reaches them only through `interrupt`."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor` stays open in every command."""
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        """By name."""
        self._descriptor = descriptor
        self._lifeline, self._held = os.pipe()  # nobody writes: a command reads the end when this process is gone
        self._events: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def start(self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        """Starts a command with `environment` added to this process's; what it prints is appended to `log`."""
        with log.open("ab") as file:
            process = self.running[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**os.environ, LIFELINE: str(self._lifeline), **environment},
                start_new_session=True,
                pass_fds=[self._descriptor, self._lifeline],
            )
        threading.Thread(target=self._watch, args=(name, process), daemon=True).start()

    def wait(self, timeout_s: float | None = None) -> Ended | None:
        """The next command to end; None once `wake` was called or the time has passed."""
        try:
            name = self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None
        return None if name is None else Ended(name, self.running.pop(name).returncode)

    def wake(self) -> None:
        """Ends a `wait`; safe in a signal handler."""
        self._events.put(None)

    def interrupt(self) -> None:
        """SIGINT to every command, but not to the processes it has started."""
        for process in self.running.values():
            process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL to what still runs, and to all that it has started; waits for the commands to be gone."""
        for process in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        deadline = time.monotonic() + KILL_S
        while self.running and (left := deadline - time.monotonic()) > 0:
            self.wait(left)

    def close(self) -> None:
        """Kills what still runs, and lets go of the rest."""
        self.kill()
        os.close(self._lifeline)
        os.close(self._held)

    def _watch(self, name: str, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        self._events.put(name)
