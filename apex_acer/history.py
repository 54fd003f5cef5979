"""What a run has written of itself: the rows of `metrics.jsonl`, and as arrays by source and metric."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from apex_acer.curves import Curve

Row = dict[str, Any]
"""A row of `metrics.jsonl`: `source`, `wall_s` and metrics by name, None where one was not finite."""


class History:
    """A run's rows as arrays. A learner's rows have the rate of the steps it accepted, `env_steps_per_s`, too."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows: dict[str, list[Row]] = {}
        for row in rows:
            self._rows.setdefault(row["source"], []).append(row)
        _add_rates(self._rows.get("learner", []))

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def sources(self, kind: str) -> list[str]:
        """Those of a kind, `learner`, `evaluator` or `actor`, in the order of their numbers."""
        return sorted(
            (name for name in self._rows if name.partition("_")[0] == kind), key=lambda name: (len(name), name)
        )

    def curve(self, source: str, metric: str, over: str = "env_steps") -> Curve:
        """`metric` `[L]` over `over` `[L]`, from the rows that have both; L is 0 where none has."""
        rows = self._rows.get(source, [])
        pairs = [(row[over], row[metric]) for row in rows if is_number(row.get(over)) and is_number(row.get(metric))]
        x, y = np.array(pairs, np.float64).reshape(-1, 2).T
        return x, y


def read_rows(path: Path, start: int = 0) -> list[Row]:
    """The rows of a `metrics.jsonl` from byte `start` on, each with its `source`, `env_steps` and `wall_s`.

    What is no whole row is left out, as a run that still trains may be in the midst of its last line. No file, no rows.

    Raises:
        OSError: where the file cannot be read.
    """
    if not path.is_file():
        return []
    with path.open("rb") as file:
        file.seek(start)
        return [row for row in map(_parse, file) if row is not None]


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a finite number, as opposed to whatever else JSON may hold."""
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def _parse(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    named = isinstance(row, dict) and isinstance(row.get("source"), str)
    return row if named and is_number(row.get("env_steps")) and is_number(row.get("wall_s")) else None


def _add_rates(rows: list[Row]) -> None:
    for before, row in itertools.pairwise([{"env_steps": 0, "wall_s": 0.0}, *rows]):
        if (elapsed := row["wall_s"] - before["wall_s"]) > 0:
            row["env_steps_per_s"] = (row["env_steps"] - before["env_steps"]) / elapsed
