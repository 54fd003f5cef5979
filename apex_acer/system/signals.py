"""Notes signals that ask a program to end, so that it can end in good order."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

SAME_SIGNAL_S = 0.2  # one press reaches a program twice if a wrapper passes on what its group has got already


class Signals:
    """Inside the context, SIGINT, SIGTERM and SIGHUP are only noted; Python allows that only in the main thread.

    SIGHUP, the end of the terminal, is noted only if it is the first signal: a shell and the kernel may both send it. Under
    `nohup` it stays ignored.
    """

    def __init__(self) -> None:
        self.received: list[signal.Signals] = []
        self.wake: Callable[[], None] = lambda: None  # called at each signal; must be safe in a signal handler
        self._before: dict[signal.Signals, Any] = {}
        self._last_at = -SAME_SIGNAL_S

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            numbers = [signal.SIGINT, signal.SIGTERM]
            if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
                numbers.append(signal.SIGHUP)
            self._before = {number: signal.signal(number, self._on_signal) for number in numbers}
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
