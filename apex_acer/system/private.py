"""Private folders of runs under /tmp, and the removal of folders that killed runs have left.

Every process of a run holds a lock on the run's folder while it lives: the manager takes it, and the others inherit its
descriptor. If another process gets the lock, no process of that run is left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PLACE = Path("/tmp")  # the path of an ipc socket has at most 107 characters, which a run's folder may exceed
PREFIX = "apex-acer-"
LOCK = "lock"  # name of the file in the folder
TRIES = 10  # another run that starts at the same time may take the new folder for an abandoned one


class PrivateFolder:
    """A new folder that only this user can enter (mode 0700)."""

    def __init__(self, kind: str = "") -> None:
        """`kind` is part of its name. First removes the folders that killed runs of this user have left."""
        remove_left_ones()
        for _ in range(TRIES):
            self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{kind}", dir=PLACE))
            # every process of the run must inherit this descriptor
            self.lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if _take(self.lock, self.path):
                return
            os.close(self.lock)
        raise OSError(f"{PLACE}: no folder stays there")

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)


def remove_left_ones() -> None:
    """Removes this user's private folders whose lock no process holds; a folder without a lock may be something else."""
    for folder in PLACE.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if _take(lock, folder):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _take(lock: int, folder: Path) -> bool:
    """Takes the lock; returns whether it was free and is still the folder's."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(lock), (folder / LOCK).stat())
    except OSError:
        return False
