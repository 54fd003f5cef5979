"""A run's folder: made so that nothing of anybody else's is in it, and found again if it is renamed or deleted."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import sys
from collections.abc import Iterator
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


_held: dict[Path, tuple[str, int]] = {}
"""The run's id, and a descriptor of its open folder, which names it wherever it is; by the path where it was found."""


@contextlib.contextmanager
def held(path: Path, run_id: str) -> Iterator[None]:
    """Keeps the folder `path` of the run open inside the context, so that `where` finds it."""
    _held[path] = run_id, os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        os.close(_held.pop(path)[1])


def where(path: Path) -> Path:
    """Where the run's folder is that was `path` when it was `held`; if it was deleted, a new one beside that."""
    if path not in _held:
        return path
    run_id, descriptor = _held[path]
    for place in (path, _path_of(descriptor)):
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(place), os.fstat(descriptor)):
                return place
    # a name of which every process of this run thinks, and no other
    fresh = path.with_name(f"{path.name}-{run_id[:8]}")
    fresh.mkdir(parents=True, exist_ok=True)
    os.close(descriptor)
    _held[path] = run_id, os.open(fresh, os.O_RDONLY | os.O_CLOEXEC)
    return fresh


def _path_of(descriptor: int) -> Path:
    """The path of an open folder, of a deleted one any."""
    with contextlib.suppress(OSError):
        if sys.platform == "darwin":
            return Path(os.fsdecode(fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0")))
        return Path(os.readlink(f"/proc/self/fd/{descriptor}"))
    return Path()
