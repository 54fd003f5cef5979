"""A terminal that is drawn on while a program runs, and then left as it was found."""

from __future__ import annotations

import contextlib
import os
import signal
import termios
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live

DRAW_S = 0.25  # between two pictures
LEAVE_S = 2.0  # for the last picture; a terminal stopped by Ctrl-S takes none
LOCAL_MODES = 3  # where termios.tcgetattr has them


class Terminal:
    """Draws what `picture` gives, in a thread of its own: what the terminal does can neither delay nor end a run.

    Meanwhile the cursor is hidden and what is typed is neither shown nor left to the shell. Ctrl-Z gives the terminal back
    before it stops the program; nothing is drawn while another program is in the foreground.
    """

    def __init__(self, console: Console, picture: Callable[[], RenderableType]) -> None:
        """`console` writes to a terminal."""
        self._console, self._picture = console, picture
        self._fd = console.file.fileno()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._before: Any = None

    def __enter__(self) -> Terminal:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:
            self._before = signal.signal(signal.SIGTSTP, self._suspend)
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTSTP, self._before)
        self._stop()

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        """Stops this process with the terminal as it was; what follows is done once it goes on."""
        self._stop()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._suspend)
        self._start()

    def _start(self) -> None:
        if self._thread is None:
            self._ended = threading.Event()
            self._thread = threading.Thread(target=self._draw, args=(self._ended,), name="terminal", daemon=True)
            self._thread.start()

    def _stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread:
            self._ended.set()
            thread.join(LEAVE_S)

    def _draw(self, ended: threading.Event) -> None:
        """Until `ended`; starts anew where the size changes, because a terminal moves lines then."""
        with contextlib.suppress(OSError, termios.error):  # the terminal is gone
            while not ended.is_set():
                if not self._in_front:
                    ended.wait(DRAW_S)
                    continue
                size = self._console.size
                with (
                    self._quiet(),
                    Live(get_renderable=self._picture, console=self._console, auto_refresh=False) as live,
                ):
                    while self._in_front and self._console.size == size and not ended.is_set():
                        live.refresh()
                        ended.wait(DRAW_S)
                if self._console.size != size:
                    self._console.clear()

    @property
    def _in_front(self) -> bool:
        """Whether this program has the terminal; also where there is no job control."""
        try:
            return os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError:
            return True

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """Shows nothing that is typed, and forgets it afterwards."""
        before = termios.tcgetattr(self._fd)
        quiet = [*before]
        quiet[LOCAL_MODES] &= ~termios.ECHO
        termios.tcsetattr(self._fd, termios.TCSADRAIN, quiet)
        try:
            yield
        finally:
            if self._in_front:  # who is not would be stopped, and has no say
                termios.tcsetattr(self._fd, termios.TCSAFLUSH, before)
