"""Printing text that is safe for a terminal, to a stream whose reader may have left."""

from __future__ import annotations

import select
import sys
from typing import TextIO


def printable(text: str) -> str:
    """`text` on one line, with control characters spelt out, which could move the cursor or change colours."""
    return "".join(letter if letter.isprintable() else _spelt_out(letter) for letter in text)


def printable_lines(text: str) -> str:
    """`text` with each line made `printable`."""
    return "\n".join(map(printable, text.split("\n")))


def _spelt_out(letter: str) -> str:
    return " " if letter.isspace() else letter.encode("unicode_escape").decode()


def is_read(stream: TextIO, wait_s: float) -> bool:
    """Whether `stream` takes a few lines at once, or within `wait_s` seconds: a pipe is full if its reader stands still.

    It does if the reader has left, too.
    """
    try:
        descriptor = stream.fileno()
    except (AttributeError, OSError, ValueError):  # no file
        return True
    poller = select.poll()
    poller.register(descriptor, select.POLLOUT)
    return bool(poller.poll(1000 * wait_s))


def say(text: str, stream: TextIO | None = None) -> bool:
    """Prints `text`, to standard output by default; returns false if the reader has left, as `head` does.

    A character that the stream's encoding lacks is replaced.
    """
    stream = stream or sys.stdout
    encoding = stream.encoding or "utf-8"
    try:
        print(text.encode(encoding, "replace").decode(encoding), file=stream, flush=True)
    except OSError:
        return False
    return True
