"""What a program hears of the run it trains, in functions of its own. Imports no torch."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from apex_acer.manager.result import TrainResult
from apex_acer.storage.history import LoggedRow


@dataclass(frozen=True)
class Evaluation:
    """The unclipped returns of one evaluation."""

    env_steps: int
    """Environment steps that the evaluated weights were trained for."""
    mean: float
    std: float
    min: float
    max: float
    length: float
    """Mean length of the episodes, environment steps."""


def _ignore(heard: Any) -> None:
    """The callback where none is given."""


@dataclass(frozen=True)
class Callbacks:
    """Functions called in the caller's own process and thread while a run trains, about twice a second.

    The run's processes go on meanwhile, but nobody looks after them before a call returns: none is restarted, and a first
    Ctrl-C waits for it; a second one interrupts the call, and the run ends unsaved. What a call raises ends the run: it is
    saved, and `train` raises the same.
    """

    on_status: Callable[[dict[str, Any]], object] = _ignore
    """With the newest row of every process (`rows`), and in `news` who was restarted."""
    on_rows: Callable[[list[LoggedRow]], object] = _ignore
    """With the rows written to `metrics.jsonl` since the last call, each once. Where a learner died, `env_steps` goes back
    to its checkpoint, from which on rows are written anew."""
    on_evaluation: Callable[[Evaluation], object] = _ignore
    """With each evaluation, after its row."""
    on_stop: Callable[[TrainResult], object] = _ignore
    """With how the run ended, once all of it is over; not where it failed, as `train` then raises."""


class Listener:
    """Tells `callbacks` what a run's statuses and rows say."""

    def __init__(self, callbacks: Callbacks, folder: Path) -> None:
        """Rows that are in `folder` already are not told again."""
        self._callbacks = callbacks
        self._rows = RowReader(folder / "metrics.jsonl")
        self.busy = False
        """Whether a callback is at work."""

    def tell(self, status: dict[str, Any] | None = None) -> None:
        """Calls who has something to hear; raises what a callback raises."""
        self.busy = True
        try:
            if status:
                self._callbacks.on_status(status)
            if rows := self._rows.read():
                self._callbacks.on_rows(rows)
            for evaluation in evaluations(rows):
                self._callbacks.on_evaluation(evaluation)
        finally:
            self.busy = False

    def close(self) -> None:
        """Closes the file of rows."""
        self._rows.close()


def evaluations(rows: list[LoggedRow]) -> list[Evaluation]:
    """The evaluations among `rows`."""
    return [
        Evaluation(
            row["eval_env_steps"],
            row["eval_return"],
            row["eval_return_std"],
            row["eval_return_min"],
            row["eval_return_max"],
            row["eval_length"],
        )
        for row in rows
        if "eval_return" in row
    ]


class RowReader:
    """Reads the rows at the end of `metrics.jsonl` as they come.

    A learner that goes on from a checkpoint writes the file anew, without the rows after that: another file of that name.
    """

    def __init__(self, path: Path) -> None:
        """Begins at the end of what is there."""
        self._path = path
        self._file: BinaryIO | None = None
        self.read()

    def read(self) -> list[LoggedRow]:
        """The rows since the last call; half a line at the end is left for the next."""
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
    """The length of the lines with which both files begin."""
    one.seek(0)
    other.seek(0)
    pairs: Iterator[tuple[bytes, bytes]] = zip(one, other, strict=False)
    return sum(len(line) for line, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
