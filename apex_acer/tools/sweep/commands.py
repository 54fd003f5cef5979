"""Commands that run at the same time, and can be waited for, interrupted and killed."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from apex_acer.system.signals import Signals

PARENT_PIPE = "APEX_ACER_PARENT_PIPE"  # environment variable: a descriptor whose end-of-file ends the command
LOOK_S = 0.5  # between two looks at what the commands have written
STOP_S = 15.0  # a command that was interrupted and has not ended within this is killed
KILL_S = 2.0  # a process that survives SIGKILL longer than this is stuck in the kernel


def end_with_the_starter() -> None:
    """Sends this process SIGTERM once the process that started it as a command has ended, for whatever reason."""
    if descriptor := os.environ.pop(PARENT_PIPE, ""):  # popped: child processes are not concerned
        os.set_inheritable(int(descriptor), False)
        threading.Thread(target=_end_at, args=(int(descriptor),), name="parent-death pipe", daemon=True).start()


def _end_at(pipe: int) -> None:
    os.read(pipe, 1)
    os.kill(os.getpid(), signal.SIGTERM)


class Commands:
    """Child processes, each in a session of its own, so that Ctrl-C reaches them only through `interrupt`."""

    def __init__(self) -> None:
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._parent_pipe, self._parent_end = os.pipe()  # never written to: reading it ends once this process has ended
        self._events: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        output: Path,
        log: Path,
        environment: Mapping[str, str],
        lock: int,
    ) -> None:
        """Starts a command; `output` gets its standard output, `log` has its standard error appended.

        `environment` is added to this process's environment variables. The descriptor `lock` stays open in the command.
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
    ) -> None:
        """Works until nothing runs and there is nothing to begin; no process remains, however that ends.

        The first signal interrupts the commands, and the second, or `STOP_S`, kills those that have not ended.

        Args:
            at_once: commands at the same time.
            signals: those that the program gets.
            begin: begins what is next, which may be done without a command; returns whether there was anything.
            take: told the name and the exit code of each command that has ended; minus a signal's number if that killed it.
            look: called twice a second.
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
            self._interrupt_all(signals, take)
        finally:
            self._close()

    def interrupt(self, name: str) -> None:
        """Sends SIGINT to a running command, but not to the processes that it has started."""
        self.running[name].send_signal(signal.SIGINT)

    def kill(self, name: str) -> None:
        """Kills a running command with all processes it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.running[name].pid, signal.SIGKILL)

    def _interrupt_all(self, signals: Signals, take: Callable[[str, int], None]) -> None:
        """Interrupts the commands and waits for them, until `STOP_S` have passed or a second signal comes."""
        for name in self.running:
            self.interrupt(name)
        deadline = time.monotonic() + STOP_S
        while self.running and len(signals.received) < 2 and (left := deadline - time.monotonic()) > 0:
            if ended := self._wait(left):
                take(*ended)  # it may have finished

    def _close(self) -> None:
        """Kills the running commands with all processes they started, and waits until they have ended."""
        for name in self.running:
            self.kill(name)
        deadline = time.monotonic() + KILL_S
        while self.running and (left := deadline - time.monotonic()) > 0:
            self._wait(left)
        os.close(self._parent_pipe)
        os.close(self._parent_end)

    def _wait(self, timeout_s: float) -> tuple[str, int] | None:
        """The next command to end; None if a signal came or the time has passed."""
        try:
            name = self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None
        return None if name is None else (name, self.running.pop(name).returncode)

    def _watch(self, name: str, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        self._events.put(name)
