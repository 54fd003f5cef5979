"""A run's folder: made so that nothing of anybody else's is in it."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from apex_acer.storage import runlog

LEFT = (runlog.NAME, "token")
"""The names of what a start leaves that was refused, or broken off before its learner was ready."""


def make_new(path: Path) -> Path:
    """Makes the folder `path`, or if that exists `path-2`, `path-3` …, so that it is nobody else's; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        folder = path if number == 1 else path.with_name(f"{path.name}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise AssertionError


def foreign(folder: Path) -> str:
    """The name of something in `folder` that a start of this program has not left there; empty if there is nothing."""
    names = sorted(os.listdir(folder))
    return next((name for name in names if name not in LEFT or not _was_left(folder / name)), "")


def _was_left(path: Path) -> bool:
    return runlog.is_log(path) if path.name == runlog.NAME else path.is_file()
