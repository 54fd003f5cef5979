"""A pipe that ends a wait for descriptors."""

from __future__ import annotations

import contextlib
import os
import threading


class Waker:
    """Ends a poll, from another thread or a signal handler; harmless once it is closed."""

    def __init__(self) -> None:
        self.woken, self._wake = os.pipe()
        """`woken` is the descriptor to poll."""
        os.set_blocking(self._wake, False)
        self._open = True
        # a descriptor closed by one thread may be another file's when the next writes; a handler may come in between
        self._lock = threading.RLock()

    def wake(self) -> None:
        """Makes `woken` readable."""
        with self._lock:
            if self._open:
                with contextlib.suppress(BlockingIOError):  # full of wake-ups already
                    os.write(self._wake, b"w")

    def clear(self) -> None:
        """Takes the wake-ups; call it only where `woken` is readable."""
        os.read(self.woken, 4096)

    def close(self) -> None:
        """Closes the pipe; later calls of `wake` and `close` do nothing."""
        with self._lock:
            if self._open:
                self._open = False
                os.close(self._wake)
                os.close(self.woken)
