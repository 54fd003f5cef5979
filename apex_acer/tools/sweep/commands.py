"""Commands that run at the same time, and can be waited for, interrupted and killed."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

LIFELINE = "APEX_ACER_LIFELINE"  # environment variable: a pipe's descriptor; its end-of-file ends the command
KILL_S = 2.0  # a process that survives SIGKILL longer than this is stuck in the kernel


def end_with_the_starter() -> None:
    """Sends this process SIGTERM once the process that started it as a command has ended, for whatever reason."""
    if descriptor := os.environ.pop(LIFELINE, ""):  # popped: child processes are not concerned
        os.set_inheritable(int(descriptor), False)
        threading.Thread(target=_end_at, args=(int(descriptor),), name="lifeline", daemon=True).start()


def _end_at(lifeline: int) -> None:
    os.read(lifeline, 1)
    os.kill(os.getpid(), signal.SIGTERM)


class Ended(NamedTuple):
    """A command that has ended."""

    name: str
    code: int
    """Its exit code; minus the signal's number if a signal killed it."""


class Commands:
    """Child processes, each in a session of its own, so that Ctrl-C reaches them only through `interrupt`."""

    def __init__(self) -> None:
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._lifeline, self._held = os.pipe()  # never written to: reading it ends once this process has ended
        self._events: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        output: Path,
        log: Path,
        environment: Mapping[str, str],
        held: int,
    ) -> None:
        """Starts a command; `output` gets its standard output, `log` has its standard error appended.

        `environment` is added to this process's environment variables. The descriptor `held` stays open in the command.
        """
        with output.open("wb") as printed, log.open("ab") as errors:
            process = self.running[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=errors,
                env={**os.environ, LIFELINE: str(self._lifeline), **environment},
                start_new_session=True,
                pass_fds=[held, self._lifeline],
            )
        threading.Thread(target=self._watch, args=(name, process), daemon=True).start()

    def wait(self, timeout_s: float | None = None) -> Ended | None:
        """Waits for the next command to end; None if `wake` was called or the time has passed."""
        try:
            name = self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None
        return None if name is None else Ended(name, self.running.pop(name).returncode)

    def wake(self) -> None:
        """Ends a `wait`; safe in a signal handler."""
        self._events.put(None)

    def interrupt(self, *names: str) -> None:
        """Sends SIGINT to the commands `names`, by default to all, but not to the processes they have started."""
        for name in names or self.running:
            self.running[name].send_signal(signal.SIGINT)

    def stop(self, within_s: float, signals: Sequence[signal.Signals]) -> Iterator[Ended]:
        """Interrupts all commands, and yields those that end within `within_s` and before a second signal."""
        self.interrupt()
        deadline = time.monotonic() + within_s
        while self.running and len(signals) < 2 and (left := deadline - time.monotonic()) > 0:
            if ended := self.wait(left):
                yield ended

    def kill(self, name: str) -> None:
        """Kills a running command with all processes it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.running[name].pid, signal.SIGKILL)

    def close(self) -> None:
        """Kills the running commands with all processes they started, and waits until they have ended."""
        for name in self.running:
            self.kill(name)
        deadline = time.monotonic() + KILL_S
        while self.running and (left := deadline - time.monotonic()) > 0:
            self.wait(left)
        os.close(self._lifeline)
        os.close(self._held)

    def _watch(self, name: str, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        self._events.put(name)
