"""A pipe that interrupts a wait for file descriptors."""

from __future__ import annotations

import contextlib
import os
import threading


class Waker:
    """Ends a poll from another thread or a signal handler; harmless once it is closed."""

    def __init__(self) -> None:
        self.woken, self._wake = os.pipe()  # the descriptors to poll and to write
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
        """Removes the wake-ups; call it only if `woken` is readable."""
        os.read(self.woken, 4096)

    def close(self) -> None:
        """Closes the pipe; later calls of `wake` and `close` do nothing."""
        with self._lock:
            if self._open:
                self._open = False
                os.close(self._wake)
                os.close(self.woken)
