"""`log.txt` in a run's folder: whole lines with date, time and who says them, in the file as soon as they are said.

Every process opens the file for appending and writes for itself, so that neither a frozen nor a killed process takes along
what another one has said.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import TextIO

from apex_acer.system.output import printable

NAME = "log.txt"
LONGEST_LINE = 8192  # bytes, of what goes on without an end of line
LAST_BYTES = 20_000  # of a transcript, which are shown
LONGEST_TRANSCRIPT = 16 * 2**20  # bytes; then it begins anew, because it may be in memory
MARK = b"\x1e"  # before a line of a transcript that is in the log already
MARKED_LINE = re.compile(MARK + rb"[^\n]*\n")

speaker: ContextVar[str] = ContextVar("speaker", default="manager")
"""Who speaks where a stream does not know it: the serial engine has several in one process."""


class Log:
    """The file, which any number of processes may append to."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError if the run's `folder` cannot be written."""
        self.descriptor = os.open(folder / NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def say(self, name: str, lines: list[bytes]) -> None:
        """Writes `lines` at once, with date, time and `name`."""
        now = time.time()
        at = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now))},{int(now % 1 * 1000):03d}"
        head = f"{at} {name}: ".encode()
        self.append(b"".join(head + printable(line.decode(errors="replace")).encode() + b"\n" for line in lines))

    def append(self, data: bytes) -> None:
        """Writes whole lines that have all that; a disk that is full ends nobody."""
        with contextlib.suppress(OSError):
            os.write(self.descriptor, data)

    def close(self) -> None:
        """Closes the file."""
        os.close(self.descriptor)


class Speech(io.RawIOBase):
    """What one process prints in Python, line by line into a `Log`."""

    def __init__(self, log: Log, name: str = "", transcript: int | None = None) -> None:
        """`name` is who speaks, or else `speaker` says it; lines go, marked, to the descriptor `transcript`, too."""
        self._log, self._name, self._transcript = log, name, transcript
        self._begun = b""
        self._lock = threading.RLock()  # what is printed may have a destructor print

    def stream(self) -> TextIO:
        """Like `sys.stdout`."""
        return io.TextIOWrapper(self, "utf-8", "backslashreplace", write_through=True)  # type: ignore[type-var]

    def writable(self) -> bool:
        """It is."""
        return True

    def fileno(self) -> int:
        """Where a program that is started may print."""
        return super().fileno() if self._transcript is None else self._transcript

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        """Takes bytes, and writes the lines that they end."""
        with self._lock:
            *lines, self._begun = (self._begun + bytes(data)).split(b"\n")
            if len(self._begun) > LONGEST_LINE:
                lines, self._begun = [*lines, self._begun], b""
            self._say(lines)
        return len(data)

    def end_line(self) -> None:
        """Writes what was begun."""
        with self._lock:
            lines, self._begun = [self._begun] if self._begun else [], b""
            self._say(lines)

    def _say(self, lines: list[bytes]) -> None:
        if not lines:
            return
        self._log.say(self._name or speaker.get(), lines)
        if self._transcript is not None:
            with contextlib.suppress(OSError):
                os.write(self._transcript, b"".join(MARK + line.replace(MARK, b"") + b"\n" for line in lines))


class Transcript:
    """All that a process prints, also past Python: by C code, programs it starts, or Python's fault handler.

    It is a file, because a file never keeps the process waiting; somebody else copies from it what is not in the log.
    """

    def __init__(self, path: Path, log: Log, name: str) -> None:
        self._path, self._log, self._name = path, log, name
        self._copied = 0
        path.touch()

    def open(self) -> io.FileIO:
        """For the process to append to."""
        return io.FileIO(self._path, "a")

    def copy(self, *, to_the_end: bool = False) -> None:
        """Copies to the log what has come since and is not there; half a line is left for the next time."""
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            while self._copied < size:
                data = os.pread(file.fileno(), 2**16, self._copied)
                end = len(data) if to_the_end or len(data) == 2**16 else data.rfind(b"\n") + 1
                self._copied += end
                if lines := unsaid(data[:end]):
                    self._log.say(self._name, lines)
                if not end:
                    break
            if self._copied > LONGEST_TRANSCRIPT:
                os.truncate(self._path, 0)
                self._copied = 0

    def last(self) -> str:
        """The end of all that was printed."""
        with self._path.open("rb") as file:
            file.seek(max(0, self._path.stat().st_size - LAST_BYTES))
            return shown(file.read())


def unsaid(transcript: bytes) -> list[bytes]:
    """The lines of a part of a transcript that are not in the log."""
    return MARKED_LINE.sub(b"", transcript).splitlines()


def shown(transcript: bytes) -> str:
    """A part of a transcript, to be read."""
    return transcript.replace(MARK, b"").decode(errors="replace")


@contextlib.contextmanager
def speaking_as(name: str) -> Iterator[None]:
    """Within it `speaker` is `name`."""
    token = speaker.set(name)
    try:
        yield
    finally:
        speaker.reset(token)
