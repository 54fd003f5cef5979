"""Reads the rows that a run in progress appends to its `metrics.jsonl`."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from apex_acer.storage.history import LoggedRow


class RowReader:
    """Reads new rows of `metrics.jsonl` as they are appended.

    A learner that resumes from a checkpoint replaces the file by another one, without the rows after the checkpoint.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None

    def read(self) -> list[LoggedRow]:
        """The rows since the last call, at first all; an unfinished line at the end is left for the next call."""
        rows = self._read_on()
        if self._replaced():
            before, self._file = self._file, self._path.open("rb")
            if before:
                with before:
                    self._file.seek(_common_bytes(before, self._file))
            rows += self._read_on()
        return rows

    def close(self) -> None:
        """Closes the file."""
        if self._file:
            self._file.close()

    def _read_on(self) -> list[LoggedRow]:
        if not self._file:
            return []
        start, data = self._file.tell(), self._file.read()
        num_bytes = data.rfind(b"\n") + 1
        self._file.seek(start + num_bytes)
        return [json.loads(line) for line in data[:num_bytes].splitlines()]

    def _replaced(self) -> bool:
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return False
        return not (self._file and os.path.samestat(there, os.fstat(self._file.fileno())))


def _common_bytes(one: BinaryIO, other: BinaryIO) -> int:
    """Bytes of the lines that are the same at the beginning of both files."""
    one.seek(0)
    other.seek(0)
    pairs: Iterator[tuple[bytes, bytes]] = zip(one, other, strict=False)
    return sum(len(line) for line, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
