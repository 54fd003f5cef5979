"""A run's folder: made new, and found again if it is renamed or deleted."""

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
"""Names of files that may be left by a run that ended before its learner was ready."""


def make_new(path: Path) -> Path:
    """Makes the folder `path`, or if that exists `path-2`, `path-3` …; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = path
    for number in itertools.count(2):
        try:
            folder.mkdir()
            break
        except FileExistsError:
            folder = path.with_name(f"{path.name}-{number}")
    return folder


def foreign(folder: Path) -> str:
    """The name of a file in `folder` that no run has left there, as far as `LEFT` tells; empty if there is none."""
    for path in sorted(folder.iterdir()):
        was_left = runlog.is_log(path) if path.name == runlog.NAME else path.is_file()
        if path.name not in LEFT or not was_left:
            return path.name
    return ""


_held: dict[Path, tuple[str, int]] = {}
"""By path: the run's id, and a descriptor of the open folder, which finds it wherever it is moved."""


@contextlib.contextmanager
def held(path: Path, run_id: str) -> Iterator[None]:
    """Keeps the folder `path` of the run open inside the context, so that `where` finds it."""
    _held[path] = run_id, os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        os.close(_held.pop(path)[1])


def where(path: Path) -> Path:
    """Present path of the run's folder that was `held` at `path`; if it was deleted, the path of a new one beside it."""
    if path not in _held:
        return path
    run_id, descriptor = _held[path]
    for place in (path, _path_of(descriptor)):
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(place), os.fstat(descriptor)):
                return place
    # every process of this run chooses this name, and no other
    fresh = path.with_name(f"{path.name}-{run_id[:8]}")
    fresh.mkdir(parents=True, exist_ok=True)
    os.close(descriptor)
    _held[path] = run_id, os.open(fresh, os.O_RDONLY | os.O_CLOEXEC)
    return fresh


def _path_of(descriptor: int) -> Path:
    """The path of an open folder; any path if it was deleted."""
    with contextlib.suppress(OSError):
        if sys.platform == "darwin":
            return Path(os.fsdecode(fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0")))
        return Path(os.readlink(f"/proc/self/fd/{descriptor}"))
    return Path()
