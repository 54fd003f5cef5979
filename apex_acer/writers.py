"""Metrics on disk: TensorBoard folders by process and one JSONL file, both written by the learner's process."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from apex_acer import files


class Board:
    """One process's TensorBoard folder, written at once.

    Not by tensorboardX's SummaryWriter: its thread dies where the disk is full, and the next rows wait for it for ever.
    """

    def __init__(self, folder: Path, resumed_at: int | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # two files of one second need two names
        self._events = EventsWriter(str(folder / "events"), "" if resumed_at is None else f".{resumed_at}")
        if resumed_at is not None:  # TensorBoard hides what came at or after this step
            self._events.write_event(Event(step=resumed_at + 1, session_log=SessionLog(status=SessionLog.START)))

    def write(self, env_steps: int, row: Mapping[str, float]) -> None:
        """Writes `row` at `env_steps`."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in row.items()]
        self._events.write_event(Event(wall_time=time.time(), step=env_steps, summary=Summary(value=values)))
        self._events.flush()

    def close(self) -> None:
        """Closes the file."""
        self._events.close()


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
        self._boards: dict[str, Board] = {}

    def write(self, source: str, env_steps: int, wall_s: float, row: Mapping[str, float]) -> None:
        """Writes one row of `source` (`learner`, `evaluator`, `actor_<i>`) at `env_steps` of the run."""
        finite = {name: value if math.isfinite(value) else None for name, value in row.items()}
        line = json.dumps({"source": source, "env_steps": env_steps, "wall_s": round(wall_s, 3), **finite})
        with files.naming(self._folder):
            self._jsonl.write(f"{line}\n")
            if source not in self._boards:
                self._boards[source] = Board(self._folder / "tb" / source, self._resumed_at)
            self._boards[source].write(env_steps, row)

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


def _whole_lines(data: bytes) -> bytes:
    return data[: data.rfind(b"\n") + 1]
