"""Metrics on disk: TensorBoard folders by process and one JSONL file, both written by the learner's process."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from tensorboardX import SummaryWriter


class Writers:
    """Writes rows of metrics to `folder/metrics.jsonl` and `folder/tb/<source>/`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._jsonl = (folder / "metrics.jsonl").open("a", encoding="utf-8", buffering=1)
        self._boards: dict[str, SummaryWriter] = {}

    def write(self, source: str, env_steps: int, wall_s: float, row: Mapping[str, float]) -> None:
        """Writes one row of `source` (`learner`, `evaluator`, `actor_<i>`) at `env_steps` of the run."""
        finite = {name: value if math.isfinite(value) else None for name, value in row.items()}
        self._jsonl.write(
            json.dumps({"source": source, "env_steps": env_steps, "wall_s": round(wall_s, 3), **finite}) + "\n"
        )
        if source not in self._boards:
            self._boards[source] = SummaryWriter(str(self._folder / "tb" / source), flush_secs=5)
        for name, value in row.items():
            self._boards[source].add_scalar(name, value, env_steps)

    def close(self) -> None:
        """Flushes and closes everything."""
        for board in self._boards.values():
            board.close()
        self._boards.clear()
        self._jsonl.close()
