"""Finds the runs in a folder and the progress of each, reading only the end of its files."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apex_acer.config import ConfigError, RunConfig
from apex_acer.config.runfile import look_at_run
from apex_acer.manager.result import END
from apex_acer.storage import checkpoint
from apex_acer.storage.history import TAIL_BYTES, LoggedRow, is_number, read_rows
from apex_acer.storage.runlog import is_held
from apex_acer.system import files

FILES = ("config.toml", "log.txt", "metrics.jsonl")
MOST_DEPTH = 3  # a sweep has a folder for each variant, and in it one for each seed
END_BYTES = 1 << 20  # at most, in the file that says how a run ended


@dataclass(frozen=True)
class RunStatus:
    """Progress of a run; None for a value that its files do not contain."""

    name: str
    """Path of its folder within the folder that was searched."""
    environment: str | None
    algorithm: str | None
    seed: int | None
    env_steps: int
    budget: int | None
    """Environment steps after which the run ends."""
    best: float | None
    """Mean return of the best evaluation."""
    last: float | None
    """Mean return of the newest evaluation."""
    wall_s: float
    """Seconds from the first environment step to the newest row."""
    age_s: float
    """Seconds since the run wrote to a file."""
    state: str
    """`running`, `ended` by itself, `stopped` by a signal, `failed`, `broken off` (killed) or `unreadable`."""
    note: str
    """Reason for the state; may be empty."""
    checkpoint: bool
    """Whether there is a checkpoint for `apex-acer resume`."""


def list_runs(folder: Path) -> list[RunStatus]:
    """The runs in `folder` and up to three levels below, the newest output first; raises `ConfigError` without a folder."""
    if not folder.is_dir():
        raise ConfigError(f"runs: {str(folder)!r} is no folder; give a folder of runs")
    statuses = [_look(run, folder) for run in find_runs(folder)]
    return sorted(statuses, key=lambda run: (run.age_s, run.name))


def find_runs(folder: Path, depth: int = MOST_DEPTH) -> Iterator[Path]:
    """The folders that hold at least two of a run's files; no folder within one of them is searched."""
    if sum(os.path.isfile(folder / name) for name in FILES) >= 2:
        yield folder
    elif depth:
        names: list[str] = []
        with contextlib.suppress(OSError):
            names = os.listdir(folder)
        for name in names:
            if os.path.isdir(folder / name) and not name.startswith("."):
                yield from find_runs(folder / name, depth - 1)


def _look(folder: Path, root: Path) -> RunStatus:
    config: RunConfig | None = None
    saved: dict[str, Any] = {}
    rows: list[LoggedRow] = []
    try:
        state, note = _state(folder)
        if path := checkpoint.newest(folder):
            saved = checkpoint.load(path).state
        rows = _newest_rows(folder / "metrics.jsonl", saved.get("rows_length", 0))
        config = look_at_run(folder / "config.toml")
    except (ConfigError, OSError) as error:
        state, note = "unreadable", str(error)
    best, last = _scores(rows, saved.get("evaluations", {}))
    return RunStatus(
        name=str(folder.relative_to(root)) if folder != root else folder.absolute().name,
        environment=config.environment.id if config else None,
        algorithm=config.algorithm.name if config else None,
        seed=config.seed if config else None,
        env_steps=max((row["env_steps"] for row in rows), default=0),
        budget=config.stop.env_steps if config else None,
        best=best,
        last=last,
        wall_s=max((row["wall_s"] for row in rows), default=0.0),
        age_s=round(time.time() - _changed_at(folder), 1),
        state=state,
        note=note,
        checkpoint=bool(saved),
    )


def _newest_rows(metrics: Path, saved: int) -> list[LoggedRow]:
    """The newest rows, including all after the first `saved` bytes, whose scores the checkpoint has."""
    size = metrics.stat().st_size if metrics.is_file() else 0
    return read_rows(metrics, max(0, min(saved, size - TAIL_BYTES)))


def _scores(rows: list[LoggedRow], saved: dict[str, Any]) -> tuple[float | None, float | None]:
    """The returns of the best evaluation and of the newest one."""
    newest = saved.get("score")
    best = [saved.get("best"), *(row.get("best_return") for row in rows)]
    evaluations = [newest.get("eval_return") if isinstance(newest, dict) else None]
    evaluations += [row.get("eval_return") for row in rows]
    return max(_known(best), default=None), next(reversed(_known(evaluations)), None)


def _known(scores: list[Any]) -> list[float]:
    return [float(score) for score in scores if is_number(score)]


def _state(folder: Path) -> tuple[str, str]:
    if is_held(folder):
        return "running", ""
    try:
        end = json.loads(files.read(folder / END, END_BYTES))
        state, reason, error = (str(end[name]) for name in ("state", "reason", "error"))
    except (OSError, LookupError, TypeError, ValueError, RecursionError):  # not written, or another program's
        return "broken off", ""
    saved = state == "failed" or bool(end.get("weights"))
    return state, error or (reason if saved else f"{reason}, not saved")


def _changed_at(folder: Path) -> float:
    times = [0.0]
    for name in FILES:
        with contextlib.suppress(OSError):
            times.append((folder / name).stat().st_mtime)
    return max(times)
