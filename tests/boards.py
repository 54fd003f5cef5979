"""What a run has written of itself: rows of metrics, and TensorBoard's files as TensorBoard reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto import event_pb2


def lines(folder: Path) -> list[dict[str, Any]]:
    """The rows of `metrics.jsonl`, each of them JSON."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def scalars(folder: Path, source: str) -> dict[str, list[tuple[int, float]]]:
    """Steps and values by name, as TensorBoard shows them."""
    board = _board(folder, source)
    return {tag: [(event.step, event.value) for event in board.Scalars(tag)] for tag in board.Tags()["scalars"]}


def texts(folder: Path, source: str) -> dict[str, list[tuple[int, bytes]]]:
    """Steps and texts by name; the layout of charts is one."""
    board = _board(folder, source)
    found = {tag: board.Tensors(tag) for tag in board.Tags()["tensors"]}
    return {tag: [(event.step, event.tensor_proto.string_val[0]) for event in found[tag]] for tag in found}


def histograms(folder: Path, source: str) -> dict[str, list[tuple[int, Any]]]:
    """Steps and histograms by name."""
    board = _board(folder, source)
    found = {tag: board.Histograms(tag) for tag in board.Tags()["histograms"]}
    return {tag: [(event.step, event.histogram_value) for event in found[tag]] for tag in found}


def _board(folder: Path, source: str) -> EventAccumulator:
    board = EventAccumulator(str(folder / "tb" / source), {"histograms": 0, "tensors": 0})  # 0: all
    board.Reload()
    return board


def session_starts(folder: Path, source: str) -> list[int]:
    """The steps from which on TensorBoard hides what was written before."""
    starts = []
    for path in sorted((folder / "tb" / source).iterdir()):
        for event in EventFileLoader(str(path)).Load():
            if event.session_log.status == event_pb2.SessionLog.START:
                starts.append(event.step)
    return starts
