"""Runs several commands at the same time, and waits for them, interrupts or kills them."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from apex_acer.system.output import say
from apex_acer.system.signals import Signals

PARENT_PIPE = "APEX_ACER_PARENT_PIPE"  # environment variable: a descriptor whose end-of-file ends the command
LOOK_S = 0.5  # between two calls of `look`
KILL_S = 2.0  # a process that survives SIGKILL longer than this is stuck in the kernel


def end_with_the_starter() -> None:
    """Sends this process SIGTERM when the process that started it as a command has ended, for whatever reason."""
    if descriptor := os.environ.pop(PARENT_PIPE, ""):  # popped: child processes are not concerned
        os.set_inheritable(int(descriptor), False)

        def wait() -> None:
            os.read(int(descriptor), 1)
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=wait, name="parent-death pipe", daemon=True).start()


class Commands:
    """Child processes, each in its own session, so that Ctrl-C reaches them only through `interrupt`."""

    def __init__(self) -> None:
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._parent_pipe, self._parent_end = os.pipe()  # never written to: a read ends when this process has ended
        self._events: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def start(
        self, name: str, command: Sequence[str], *, output: Path, log: Path, environment: Mapping[str, str], lock: int
    ) -> None:
        """Starts a command, whose standard output replaces `output` and whose standard error is appended to `log`.

        `environment` adds to the environment variables. The descriptor `lock` stays open in the command.
        """
        with output.open("wb") as printed, log.open("ab") as errors:
            process = self.running[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=errors,
                env={**os.environ, PARENT_PIPE: str(self._parent_pipe), **environment},
                start_new_session=True,
                pass_fds=[lock, self._parent_pipe],
            )
        threading.Thread(target=self._watch, args=(name, process), daemon=True).start()

    def work(
        self,
        at_once: int,
        signals: Signals,
        begin: Callable[[], bool],
        take: Callable[[str, int], None],
        look: Callable[[], None] = lambda: None,
        *,
        stop_s: float,
    ) -> None:
        """Works until nothing runs and there is nothing to begin; leaves no process behind, however that ends.

        `begin` starts the next piece of work, with or without a command, and returns whether there was any. `take` is called
        with the name and exit code of each command that has ended, −N if signal N killed it, and `look` twice a second. The
        first of `signals` interrupts the commands; the second, or `stop_s` seconds, kills those that have not ended.
        """
        signals.wake = lambda: self._events.put(None)  # safe in a signal handler
        try:
            while not signals.received:
                while len(self.running) < at_once and not signals.received and begin():
                    pass
                if not self.running:
                    return
                ended = self._wait(LOOK_S)
                look()
                if ended:
                    take(*ended)
            if self.running:
                what = "waiting for runs to save and end; a second signal kills them"
                say(f"apex-acer: {signals.received[0].name}: {what}", sys.stderr)
            for name in self.running:
                self.interrupt(name)
            deadline = time.monotonic() + stop_s
            while self.running and len(signals.received) < 2 and (left := deadline - time.monotonic()) > 0:
                if ended := self._wait(left):
                    take(*ended)  # it may have finished
        finally:
            self._close()

    def interrupt(self, name: str) -> None:
        """Sends SIGINT to a running command, not to the processes that it has started."""
        self.running[name].send_signal(signal.SIGINT)

    def kill(self, name: str) -> None:
        """Kills a running command and all processes it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.running[name].pid, signal.SIGKILL)

    def _close(self) -> None:
        """Kills the running commands and waits for up to `KILL_S` seconds until they have ended."""
        for name in self.running:
            self.kill(name)
        deadline = time.monotonic() + KILL_S
        while self.running and (left := deadline - time.monotonic()) > 0:
            self._wait(left)
        os.close(self._parent_pipe)
        os.close(self._parent_end)

    def _wait(self, timeout_s: float) -> tuple[str, int] | None:
        """Name and exit code of the next command to end; None if a signal came or the time has passed."""
        try:
            name = self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None
        return None if name is None else (name, self.running.pop(name).returncode)

    def _watch(self, name: str, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        self._events.put(name)
