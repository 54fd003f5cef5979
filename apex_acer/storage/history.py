"""The rows of a run's `metrics.jsonl`, read at once or as they are appended, and as arrays."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

import numpy as np
from numpy.typing import NDArray

from apex_acer.protocol.metrics import MIN_INTERVAL
from apex_acer.storage.folder import where

LoggedRow = dict[str, Any]
"""A row of `metrics.jsonl`: `source`, `wall_s`, and metrics by name, which are None if not finite."""
Floats = NDArray[np.float64]
Curve = tuple[Floats, Floats]
"""x and y, each `[L]`."""
EMPTY: Curve = (np.empty(0), np.empty(0))
TAIL_BYTES = 1 << 16  # at the end of the file, in which every process has a row


class Log(dict[str, Floats]):
    """The rows of one source, by metric: arrays `[L]` with a value for each row, NaN if the row lacks it."""

    def curve(self, metric: str, over: str = "env_steps") -> Curve:
        """`metric` `[L]` over `over` `[L]`, from the rows that have both; L is 0 if there are none."""
        if metric not in self or over not in self:
            return EMPTY
        x, y = self[over], self[metric]
        finite = np.isfinite(x) & np.isfinite(y)
        return x[finite], y[finite]


class History:
    """The logs of a run by source; the learner's has `env_steps_per_s` besides, the rate of the steps that it accepted."""

    def __init__(self, rows: list[LoggedRow]) -> None:
        by_source: dict[str, list[LoggedRow]] = {}
        for row in rows:
            by_source.setdefault(row["source"], []).append(row)
        _add_rates(by_source.get("learner", []))
        self._logs = {source: _columns(of_source) for source, of_source in by_source.items()}

    def sources(self, kind: str) -> list[str]:
        """The sources of a `kind` (`learner`, `evaluator`, `actor`), in the order of their numbers."""
        names = [name for name in self._logs if name.partition("_")[0] == kind]
        return sorted(names, key=lambda name: (len(name), name))

    def metrics(self, kind: str) -> set[str]:
        """The names of the metrics in the logs of a `kind` of source."""
        return {name for source in self.sources(kind) for name in self._logs[source]} - {"wall_s"}

    def log(self, source: str) -> Log:
        """The log of `source`; empty if it has written nothing."""
        return self._logs.get(source, Log())


def read_rows(path: Path, start: int = 0) -> list[LoggedRow]:
    """The rows of a `metrics.jsonl` from byte `start` on, each with `source`, `env_steps` and `wall_s`; none without a file.

    Lines that are no whole row are left out: a run that is still training may be writing the last one. Raises OSError.
    """
    if not path.is_file():
        return []
    with path.open("rb") as file:
        file.seek(start)
        return [row for row in map(_parse, file) if row is not None]


def last_rows(path: Path) -> dict[str, dict[str, float]]:
    """The finite metrics in the newest row of each source of a `metrics.jsonl`; empty if the file cannot be read."""
    rows: list[LoggedRow] = []
    with contextlib.suppress(OSError):
        rows = read_rows(path, max(0, path.stat().st_size - TAIL_BYTES))
    return {row["source"]: {name: value for name, value in row.items() if is_number(value)} for row in rows}


class RowReader:
    """Reads the rows of a run's `metrics.jsonl` as they are appended, also if a resumed learner replaces the file.

    The new file lacks the rows after the checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        """`folder` is the run's, which may be renamed if it is `held`."""
        self._folder = folder
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
        if self._file:
            self._file.close()

    def _read_on(self) -> list[LoggedRow]:
        if not self._file:
            return []
        start, data = self._file.tell(), self._file.read()
        num_bytes = data.rfind(b"\n") + 1
        self._file.seek(start + num_bytes)
        return [row for row in map(_parse, data[:num_bytes].splitlines()) if row is not None]

    @property
    def _path(self) -> Path:
        return where(self._folder) / "metrics.jsonl"

    def _replaced(self) -> bool:
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return False
        return not (self._file and os.path.samestat(status, os.fstat(self._file.fileno())))


def is_number(value: object) -> TypeGuard[float]:
    """Whether a JSON value is a finite number."""
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def _parse(line: bytes) -> LoggedRow | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    named = isinstance(row, dict) and isinstance(row.get("source"), str)
    return row if named and is_number(row.get("env_steps")) and is_number(row.get("wall_s")) else None


def _columns(rows: list[LoggedRow]) -> Log:
    names = dict.fromkeys(name for row in rows for name in row if name != "source")
    values = {name: [row.get(name) for row in rows] for name in names}
    return Log({name: np.array([x if is_number(x) else math.nan for x in xs], float) for name, xs in values.items()})


def _add_rates(rows: list[LoggedRow]) -> None:
    """Adds the learner's steps per second to its rows, except to those that follow the previous row too closely."""
    elapsed = np.diff([row["wall_s"] for row in rows], prepend=0.0)
    steps = np.diff([row["env_steps"] for row in rows], prepend=0)
    least = MIN_INTERVAL * float(np.median(elapsed)) if rows else 0.0
    for row, seconds, made in zip(rows, elapsed, steps, strict=True):
        if seconds > 0 and seconds >= least:
            row["env_steps_per_s"] = made / seconds


def _common_bytes(one: BinaryIO, other: BinaryIO) -> int:
    """Bytes of the lines that are the same at the beginning of both files."""
    one.seek(0)
    other.seek(0)
    pairs: Iterator[tuple[bytes, bytes]] = zip(one, other, strict=False)
    return sum(len(line) for line, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
