"""Files that are whole at any time."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path


def write(path: Path, data: bytes) -> None:
    """Writes `data` beside `path`, syncs and renames, so that `path` is always a whole file.

    Raises:
        OSError: naming `path`; what was there before is still there, and nothing beside it.
    """
    with replacing(path) as beside, naming(path):
        beside.write_bytes(data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path` to write a file to, which is then synced and renamed to it.

    After an error within it, what was there before is still there, and nothing beside it.
    """
    beside = path.with_name(f".{path.name}.part")
    try:
        yield beside
        with naming(path):
            with beside.open("rb+") as file:
                os.fsync(file.fileno())
            beside.replace(path)
            sync(path.parent)
    finally:
        beside.unlink(missing_ok=True)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """An OSError that is raised within it names `path`; of a full disk it does not by itself."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def read(path: Path, limit: int) -> bytes:
    """The bytes of the file `path`, at most `limit` of them; raises OSError, also where it is a device or a pipe."""
    facts = path.stat()
    if stat.S_ISDIR(facts.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(facts.st_mode):  # it may have no end, or nothing to give
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    if facts.st_size > limit:
        raise OSError(errno.EFBIG, f"{facts.st_size} bytes, at most {limit} are read", str(path))
    return path.read_bytes()


def sync(folder: Path) -> None:
    """Puts the folder's entries on the disk: without it a rename may be undone by a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
