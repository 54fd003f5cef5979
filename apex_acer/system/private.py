"""Private folders of runs under /tmp, and what killed runs have left there.

Every process of a run holds, for as long as it lives, a lock on the folder: the manager takes it and the others inherit its
descriptor. Who gets the lock of a folder can be sure that nobody is left who needs it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PLACE = Path("/tmp")  # an ipc path has 107 characters at most, so it is never under the run's folder
PREFIX = "apex-acer-"
LOCK = "lock"  # the file in it
TRIES = 10  # of which one fails if another run that starts takes the folder for one that was left


class PrivateFolder:
    """A new folder that only this user can enter (mode 0700)."""

    def __init__(self, kind: str = "") -> None:
        """`kind` is part of its name. Removes first what killed runs of this user have left."""
        remove_left_ones()
        for _ in range(TRIES):
            self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{kind}", dir=PLACE))
            self.lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            """The descriptor that every process of the run has to inherit."""
            if _take(self.lock, self.path):
                return
            os.close(self.lock)
        raise OSError(f"{PLACE}: no folder stays there")

    def remove(self) -> None:
        """Removes it and lets go of the lock."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)


def remove_left_ones() -> None:
    """Removes the private folders of this user that no process holds; one without a lock may be anything, and stays."""
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
    """Whether the lock is ours now, and still that of the folder."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(lock), (folder / LOCK).stat())
    except OSError:
        return False
