"""Signals that ask a program to end, which are only noted, and a pipe that ends a wait.

Processes that the program starts have the default handlers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
SAME_SIGNAL_S = 0.2  # one press reaches a program twice if a wrapper passes on what its process group got, too


class Dismissed(BaseException):
    """Raised in a role that is to leave; no `Exception`, so user code that catches those lets it pass."""


class Signals:
    """Inside the context, SIGINT, SIGTERM and SIGHUP are only noted, if it is in the main thread.

    SIGHUP, the end of the terminal, is noted only if it is the first signal: a shell and the kernel may both send it. Under
    `nohup` it stays ignored.
    """

    def __init__(self) -> None:
        self.received: list[signal.Signals] = []
        self.wake: Callable[[], None] = lambda: None  # called at each signal; must be safe in a signal handler
        self.pause: Callable[[bool], None] = lambda paused: None  # called before Ctrl-Z stops the program, and after
        self._before: dict[signal.Signals, Any] = {}
        self._last_at = -SAME_SIGNAL_S

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            handlers = dict.fromkeys(ENDING, self._on_signal) | {signal.SIGTSTP: self._on_stop}
            for number in (signal.SIGHUP, signal.SIGTSTP):
                if signal.getsignal(number) == signal.SIG_IGN:
                    del handlers[number]
            self._before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        now = time.monotonic()
        again = now - self._last_at <= SAME_SIGNAL_S or (number == signal.SIGHUP and self.received)
        if not again:
            self.received.append(signal.Signals(number))
        self._last_at = now
        self.wake()

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.pause(True)
        signal.signal(number, self._before[signal.SIGTSTP])
        signal.raise_signal(number)
        signal.signal(number, self._on_stop)
        self.pause(False)


class Waker:
    """A pipe that ends a poll for file descriptors, from another thread or a signal handler; harmless once it is closed."""

    def __init__(self) -> None:
        self.woken, self._wake = os.pipe()  # descriptors to poll and to write to
        os.set_blocking(self._wake, False)
        self._open = True
        # after a close, the number may be that of another file; reentrant, because a signal handler may come in between
        self._lock = threading.RLock()

    def wake(self) -> None:
        """Makes `woken` readable."""
        with self._lock:
            if self._open:
                with contextlib.suppress(BlockingIOError):  # the pipe is full of wake-ups already
                    os.write(self._wake, b"w")

    def clear(self) -> None:
        """Removes the wake-ups; blocks if there are none."""
        os.read(self.woken, 4096)

    def close(self) -> None:
        """Closes the pipe; later calls of `wake` and `close` do nothing."""
        with self._lock:
            if self._open:
                self._open = False
                os.close(self._wake)
                os.close(self.woken)


@contextlib.contextmanager
def interrupting() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP raise KeyboardInterrupt, with their number, inside the context."""
    is_main = threading.current_thread() is threading.main_thread()
    ending = (signal.SIGTERM, signal.SIGHUP) if is_main else ()
    numbers = [number for number in ending if signal.getsignal(number) == signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _interrupt(number: int, frame: FrameType | None) -> None:
    del frame
    raise KeyboardInterrupt(number)


def _restore_defaults() -> None:
    """Restores default handlers in a fork: one by `multiprocessing` would otherwise survive its `terminate`."""
    for number in (*ENDING, signal.SIGTSTP):
        if str(getattr(signal.getsignal(number), "__module__", "")).startswith("apex_acer."):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


os.register_at_fork(after_in_child=_restore_defaults)
