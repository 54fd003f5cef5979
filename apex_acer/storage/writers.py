"""Writes metrics to one JSONL file and to a TensorBoard folder for each process; only the learner's process does."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from torch import nn

from apex_acer.config import RunConfig
from apex_acer.storage.board import Board, description, histograms
from apex_acer.storage.folder import where
from apex_acer.system import files


class Writers:
    """Writes rows of metrics to `folder/metrics.jsonl` and `folder/tb/<source>/`."""

    def __init__(self, folder: Path, resumed_at: int | None = None, length: int = 0) -> None:
        """Appends to the files that exist.

        A run `resumed_at` an environment step keeps what was written before it: the first `length` bytes of the rows.
        """
        self._folder = folder
        path = folder / "metrics.jsonl"
        if resumed_at is not None and path.exists():
            kept = path.read_bytes()[:length]
            files.write(path, kept[: kept.rfind(b"\n") + 1])
        self._resumed_at = resumed_at
        self._jsonl = path.open("a", encoding="utf-8", buffering=1)
        self._boards: dict[str, Board] = {}

    def write(self, source: str, env_steps: int, wall_s: float, row: Mapping[str, float]) -> None:
        """Writes one row of `source` (`learner`, `evaluator`, `actor_<i>`) at `env_steps` of the run."""
        finite = {name: value if math.isfinite(value) else None for name, value in row.items()}
        line = json.dumps({"source": source, "env_steps": env_steps, "wall_s": round(wall_s, 3), **finite})
        with files.naming(self._folder):
            self._jsonl.write(f"{line}\n")
            self._board(source).write(env_steps, row)

    def describe(self, config: RunConfig) -> None:
        """Writes the layout of the dashboard and the run's configuration beside the learner's rows."""
        with files.naming(self._folder):
            self._board("learner").add(self._resumed_at or 0, *description(config))

    def write_histograms(self, env_steps: int, network: nn.Module) -> None:
        """Writes the histograms of `network` beside the learner's rows."""
        with files.naming(self._folder):
            self._board("learner").add(env_steps, *histograms(network))

    @property
    def length(self) -> int:
        """Bytes of the rows so far."""
        return self._jsonl.tell()

    def close(self) -> None:
        """Flushes and closes everything."""
        for board in self._boards.values():
            board.close()
        self._boards.clear()
        self._jsonl.close()

    def _board(self, source: str) -> Board:
        if source not in self._boards:
            anew_from = self._resumed_at
            if anew_from is not None and source != "learner":  # it may have written at this same step after the save
                anew_from += 1
            self._boards[source] = Board(where(self._folder) / "tb" / source, anew_from)
        return self._boards[source]
