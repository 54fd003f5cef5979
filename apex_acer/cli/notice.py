"""A sign of life of commands that work for a while before they have anything to say."""

from __future__ import annotations

import sys


class Notice:
    """Says on a terminal what a command is doing, in a line of standard error that is gone once there is a result."""

    def __init__(self, *, quiet: bool = False) -> None:
        """Says nothing if it is to be `quiet`, or if standard error is no terminal."""
        self._shows = sys.stderr.isatty() and not quiet
        self._shown = ""

    def __enter__(self) -> Notice:
        return self

    def __exit__(self, *error: object) -> None:
        self.clear()

    def say(self, text: str) -> None:
        """Shows `text`, shorter than any terminal is wide, in the place of what is shown."""
        if self._shows:
            self.clear()
            self._shown = f"{text} ..."
            print(self._shown, end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Leaves the line empty, for what is printed next."""
        if self._shown:
            print(f"\r{' ' * len(self._shown)}\r", end="", file=sys.stderr, flush=True)
            self._shown = ""
