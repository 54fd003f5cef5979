"""Atomic writes of files, and reads of limited size."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path


def write(path: Path, data: bytes) -> None:
    """Atomically replaces the file `path` by `data`; raises OSError that names `path`, after which it is unchanged."""
    with replacing(path) as beside, naming(path):
        beside.write_bytes(data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a path beside `path` to write a file to; syncs that file and renames it to `path`.

    After an error inside the context, `path` is unchanged, and nothing is left beside it.
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
    """Adds `path` to an OSError raised inside the context, because that of a full disk names no file."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def read(path: Path, limit: int) -> bytes:
    """The bytes of the file `path`; raises OSError if they are more than `limit`, or if it is no regular file."""
    facts = path.stat()
    if stat.S_ISDIR(facts.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(facts.st_mode):  # a device or pipe may have no end, or give nothing
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    if facts.st_size > limit:
        raise OSError(errno.EFBIG, f"{facts.st_size} bytes, at most {limit} are read", str(path))
    return path.read_bytes()


def sync(folder: Path) -> None:
    """Syncs the folder's entries, without which a power cut may undo a rename."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
