"""Metrics on disk: TensorBoard folders by process and one JSONL file, both written by the learner's process."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from tensorboardX import SummaryWriter

from apex_acer import files


class Writers:
    """Writes rows of metrics to `folder/metrics.jsonl` and `folder/tb/<source>/`."""

    def __init__(self, folder: Path, resumed_at: int | None = None, length: int = 0) -> None:
        """Goes on with what is there.

        A run that is `resumed_at` so many environment steps keeps what came before: of the rows the first `length` bytes.
        """
        self._folder = folder
        path = folder / "metrics.jsonl"
        if resumed_at is not None and path.exists():
            files.write(path, _whole_lines(path.read_bytes()[:length]))
        self._resumed_at = resumed_at
        self._jsonl = path.open("a", encoding="utf-8", buffering=1)
        self._boards: dict[str, SummaryWriter] = {}

    def write(self, source: str, env_steps: int, wall_s: float, row: Mapping[str, float]) -> None:
        """Writes one row of `source` (`learner`, `evaluator`, `actor_<i>`) at `env_steps` of the run."""
        finite = {name: value if math.isfinite(value) else None for name, value in row.items()}
        self._jsonl.write(
            json.dumps({"source": source, "env_steps": env_steps, "wall_s": round(wall_s, 3), **finite}) + "\n"
        )
        if source not in self._boards:
            self._boards[source] = self._make_board(source)
        for name, value in row.items():
            self._boards[source].add_scalar(name, value, env_steps)

    @property
    def length(self) -> int:
        """Bytes of the rows so far."""
        return self._jsonl.tell()

    def _make_board(self, source: str) -> SummaryWriter:
        path, at = str(self._folder / "tb" / source), self._resumed_at
        if at is None:
            return SummaryWriter(path, flush_secs=5)
        # TensorBoard hides what came at or after the step that is purged; two files of one second need two names
        return SummaryWriter(path, purge_step=at + 1, filename_suffix=f".{at}", flush_secs=5)

    def close(self) -> None:
        """Flushes and closes everything."""
        for board in self._boards.values():
            board.close()
        self._boards.clear()
        self._jsonl.close()


def _whole_lines(data: bytes) -> bytes:
    return data[: data.rfind(b"\n") + 1]
