"""Draws on a terminal while a program runs, and restores the terminal at the end."""

from __future__ import annotations

import contextlib
import os
import signal
import termios
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live

DRAW_S = 0.25  # seconds between two drawings
LEAVE_S = 2.0  # for the last drawing; a terminal stopped by Ctrl-S would block for ever
LOCAL_MODES = 3  # index in the result of termios.tcgetattr


class Terminal:
    """Draws the result of `picture` every 0.25 s in a thread, so that the terminal can neither delay nor end a run.

    Meanwhile the cursor is hidden, and typed text is neither shown nor passed to the shell. Ctrl-Z restores the terminal
    before it stops the program; nothing is drawn while another program is in the foreground.
    """

    def __init__(self, console: Console, picture: Callable[[], RenderableType]) -> None:
        self._console, self._picture = console, picture
        self._fd = console.file.fileno()
        self._thread: threading.Thread | None = None
        self._ended, self._leaving = threading.Event(), False
        self._before: Any = None

    def __enter__(self) -> Terminal:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGTSTP) != signal.SIG_IGN:
            self._before = signal.signal(signal.SIGTSTP, self._suspend)
        self._start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTSTP, self._before)
        self._stop()

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        """Once the terminal is restored, lets the previous handler stop the program, and draws again when it continues.

        Another thread waits for that: this one may hold a lock that the drawing needs, if the signal came while it printed.
        """
        if self._thread is None:
            signal.signal(signal.SIGTSTP, self._before)
            signal.raise_signal(signal.SIGTSTP)
            signal.signal(signal.SIGTSTP, self._suspend)
            self._start()
        elif not self._leaving:
            self._leaving = True
            threading.Thread(target=self._leave, name="leave terminal", daemon=True).start()

    def _leave(self) -> None:
        self._stop()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTSTP)

    def _start(self) -> None:
        if self._thread is None:
            self._ended, self._leaving = threading.Event(), False
            self._thread = threading.Thread(target=self._draw, args=(self._ended,), name="terminal", daemon=True)
            self._thread.start()

    def _stop(self) -> None:
        if thread := self._thread:
            self._ended.set()
            thread.join(LEAVE_S)
            self._thread = None

    def _draw(self, ended: threading.Event) -> None:
        """Draws until `ended`; clears the screen if its size changes, because terminals then move lines."""
        with contextlib.suppress(OSError, termios.error):  # the terminal is gone
            while not ended.is_set():
                if not self._in_front:
                    ended.wait(DRAW_S)
                    continue
                size = self._console.size
                live = Live(get_renderable=self._picture, console=self._console, auto_refresh=False)
                with self._quiet(), live:
                    while self._in_front and self._console.size == size and not ended.is_set():
                        live.refresh()
                        ended.wait(DRAW_S)
                if self._console.size != size:
                    self._console.clear()

    @property
    def _in_front(self) -> bool:
        """Whether this program is in the foreground; true without job control."""
        try:
            return os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError:
            return True

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """Turns off the echo of typed text; discards that text afterwards."""
        before = termios.tcgetattr(self._fd)
        quiet = list(before)
        quiet[LOCAL_MODES] &= ~termios.ECHO
        termios.tcsetattr(self._fd, termios.TCSADRAIN, quiet)
        try:
            yield
        finally:
            if self._in_front:  # a background process that tried would be stopped
                termios.tcsetattr(self._fd, termios.TCSAFLUSH, before)
