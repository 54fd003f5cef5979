"""What reaches a terminal or a log: text that only shows itself, on streams that somebody may have stopped reading."""

from __future__ import annotations

import sys
from typing import TextIO


def printable(text: str) -> str:
    """`text` on one line, in which what would move a terminal's cursor or change its colours is spelt out."""
    return "".join(letter if letter.isprintable() else _spelt_out(letter) for letter in text)


def printable_lines(text: str) -> str:
    """The same of each line, as of a traceback."""
    return "\n".join(map(printable, text.split("\n")))


def _spelt_out(letter: str) -> str:
    return " " if letter.isspace() else letter.encode("unicode_escape").decode()


def say(text: str, stream: TextIO | None = None) -> bool:
    """Prints `text`, to standard output by default; returns whether the stream took it.

    Neither a reader who has left, as `head` does, nor a letter that the stream's encoding lacks ends what the program does.
    """
    stream = stream or sys.stdout
    encoding = stream.encoding or "utf-8"
    try:
        print(text.encode(encoding, "replace").decode(encoding), file=stream, flush=True)
    except OSError:
        return False
    return True
