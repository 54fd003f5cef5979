"""Name and exit codes of the program, and a line on the terminal that says what a command is doing."""

from __future__ import annotations

import sys

PROGRAM = "apex-acer"
EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130  # the last one by Ctrl-C; 128 + n by signal n


class Notice:
    """Shows on a terminal what a command is doing, in a line of standard error that is erased before the result.

    Shows nothing if `quiet`, or if standard error is no terminal.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._shows = sys.stderr.isatty() and not quiet
        self._shown = ""

    def __enter__(self) -> Notice:
        return self

    def __exit__(self, *error: object) -> None:
        self.clear()

    def say(self, text: str) -> None:
        """Replaces the line by `text`, which must be shorter than a terminal is wide."""
        if self._shows:
            self.clear()
            self._shown = f"{text} ..."
            print(self._shown, end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Erases the line."""
        if self._shown:
            print(f"\r{' ' * len(self._shown)}\r", end="", file=sys.stderr, flush=True)
            self._shown = ""
