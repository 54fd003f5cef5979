"""`log.txt` in a run's folder: whole lines with date, time and process name, written at once.

Every process opens the file for appending and writes its own lines, so no frozen or killed process delays or loses those of
another.
"""

from __future__ import annotations

import contextlib
import fcntl
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
LONGEST_LINE = 8192  # bytes; a longer line is split
LAST_BYTES = 20_000  # of a transcript that are shown after a failure
LONGEST_TRANSCRIPT = 16 * 2**20  # bytes; then it is emptied, because /tmp may be in memory
MARK = b"\x1e"  # precedes a line of a transcript that is in the log already
MARKED_LINE = re.compile(MARK + rb"[^\n]*\n")
FIRST = re.compile(rb"[\d-]{10} [\d:]{8},\d{3} (manager|launcher|learner|evaluator|actor_\d+): ")

speaker: ContextVar[str] = ContextVar("speaker", default="manager")
"""Log name for streams that have none: the serial engine has several roles in one process."""


class Log:
    """The log file, to which any number of processes may append."""

    def __init__(self, folder: Path) -> None:
        """Opens the log in the run's `folder`; raises OSError if it cannot be written."""
        self.descriptor = os.open(folder / NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def say(self, name: str, lines: list[bytes]) -> None:
        """Writes `lines` in one piece, each with date, time and `name`."""
        now = time.time()
        at = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now))},{int(now % 1 * 1000):03d}"
        head = f"{at} {name}: ".encode()
        self.append(b"".join(head + printable(line.decode(errors="replace")).encode() + b"\n" for line in lines))

    def append(self, data: bytes) -> None:
        """Writes lines that have date, time and name already; a full disk is ignored."""
        with contextlib.suppress(OSError):
            os.write(self.descriptor, data)

    def close(self) -> None:
        os.close(self.descriptor)


def is_log(path: Path) -> bool:
    """Whether the file `path` is a log of this program, or empty."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        line = file.readline(LONGEST_LINE)
    return not line or bool(FIRST.match(line))


def is_held(folder: Path) -> bool:
    """Whether a program trains in the run's `folder`, in which case it keeps the log locked."""
    log = folder / NAME
    if not log.is_file():
        return False
    with log.open("rb") as file:
        try:  # shared, so that two programs that ask at once do not see each other; released at once
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a file system without locks
            return False
    return False


class Speech(io.RawIOBase):
    """A stream that writes to a `Log`, line by line, what a process prints in Python."""

    def __init__(self, log: Log, name: str = "", transcript: int | None = None) -> None:
        """Lines have the name `name`, or else `speaker`; they also go, marked, to the descriptor `transcript`."""
        self._log, self._name, self._transcript = log, name, transcript
        self._unfinished = b""  # line
        self._lock = threading.RLock()  # printing may run a destructor that prints

    def stream(self) -> TextIO:
        return io.TextIOWrapper(self, "utf-8", "backslashreplace", write_through=True)  # type: ignore[type-var]

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        """The descriptor to which programs print that this process starts."""
        return super().fileno() if self._transcript is None else self._transcript

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        """Writes the lines that are complete."""
        with self._lock:
            *lines, self._unfinished = (self._unfinished + bytes(data)).split(b"\n")
            if len(self._unfinished) > LONGEST_LINE:
                lines, self._unfinished = [*lines, self._unfinished], b""
            self._say(lines)
        return len(data)

    def end_line(self) -> None:
        """Writes an unfinished line."""
        with self._lock:
            lines, self._unfinished = [self._unfinished] if self._unfinished else [], b""
            self._say(lines)

    def _say(self, lines: list[bytes]) -> None:
        if not lines:
            return
        self._log.say(self._name or speaker.get(), lines)
        if self._transcript is not None:
            with contextlib.suppress(OSError):
                os.write(self._transcript, b"".join(MARK + line.replace(MARK, b"") + b"\n" for line in lines))


class Transcript:
    """The file of all that a process prints, in C code and Python's fault handler, too; a file never blocks it.

    The manager copies to the log what is not there yet.
    """

    def __init__(self, path: Path, log: Log, name: str) -> None:
        self._path, self._log, self._name = path, log, name
        self._copied = 0
        path.touch()

    def open(self) -> io.FileIO:
        """The file, for the process to append to."""
        return io.FileIO(self._path, "a")

    def copy(self, *, to_the_end: bool = False) -> None:
        """Copies new lines to the log, unless they are marked; an unfinished line waits, except `to_the_end`."""
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
        return last(self._path)


def last(path: Path, start: int = 0) -> str:
    """The end of the transcript in the file `path`, as text, without its first `start` bytes."""
    with path.open("rb") as file:
        file.seek(max(start, path.stat().st_size - LAST_BYTES))
        return shown(file.read())


def unsaid(transcript: bytes) -> list[bytes]:
    """The lines of `transcript` that are not in the log."""
    return MARKED_LINE.sub(b"", transcript).splitlines()


def shown(transcript: bytes) -> str:
    """`transcript` as readable text."""
    return transcript.replace(MARK, b"").decode(errors="replace")


@contextlib.contextmanager
def speaking_as(name: str) -> Iterator[None]:
    """Makes `name` the `speaker` inside the context."""
    token = speaker.set(name)
    try:
        yield
    finally:
        speaker.reset(token)
