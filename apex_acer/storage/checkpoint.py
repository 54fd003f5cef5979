"""Checkpoints: folders with all that a run needs to resume. An incomplete or damaged one is ignored.

`checkpoint/<updates>/` holds raw files and `manifest.json`, which is written last and names each file's length and
checksum. Only then does the folder get its name, and the previous checkpoint is removed. Nothing is unpickled. Torch-free.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from apex_acer.config import ConfigError
from apex_acer.protocol.specification import Array
from apex_acer.system import files

FOLDER, MANIFEST = "checkpoint", "manifest.json"
FORMAT = 3
MAX_MANIFEST_BYTES = 1 << 24
MAX_READ_BYTES = 1 << 32  # of a file that is not viewed


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was whole when it was opened; each file is compared with its checksum when it is read."""

    path: Path
    state: dict[str, Any]  # JSON values
    _files: dict[str, tuple[int, int]]

    @property
    def names(self) -> list[str]:
        return sorted(self._files)

    def read(self, name: str) -> bytes:
        """The contents of the file `name`; raises `ConfigError` if it is missing or damaged."""
        path, facts = self.path / name, self._facts(name)
        try:
            data = files.read(path, MAX_READ_BYTES)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None
        self._require_whole(path, data, facts)
        return data

    def view(self, name: str, shape: tuple[int, ...], dtype: str) -> Array:
        """The raw file `name` as an array, which is read as it is used.

        Raises `ConfigError` if it is missing, damaged or of another size.
        """
        path, facts = self.path / name, self._facts(name)
        needed = math.prod(shape) * np.dtype(dtype).itemsize
        if facts[0] != needed:
            raise ConfigError(f"{path}: {facts[0]} bytes, this run needs {needed}")
        if not needed:
            return np.empty(shape, dtype)  # nothing can be mapped
        try:
            array: Array = np.memmap(path, np.dtype(dtype), mode="c", shape=shape)
        except (OSError, ValueError) as error:  # ValueError: it has become shorter
            raise ConfigError(f"{path}: {getattr(error, 'strerror', error)}") from None
        self._require_whole(path, array, facts)
        return array

    def _facts(self, name: str) -> tuple[int, int]:
        try:
            return self._files[name]
        except KeyError:
            raise ConfigError(f"{self.path / MANIFEST}: names no file {name!r}") from None

    @staticmethod
    def _require_whole(path: Path, content: bytes | Array, facts: tuple[int, int]) -> None:
        buffer = _buffer(content)
        if (len(buffer), zlib.crc32(buffer)) != facts:
            raise ConfigError(f"{path}: damaged; its checksum is not the manifest's")


def write(folder: Path, number: int, state: Mapping[str, Any], contents: Mapping[str, bytes | Array]) -> Path:
    """Writes checkpoint `number` of the run in `folder` and removes the checkpoints before it.

    Args:
        folder: the run's folder.
        number: larger for newer checkpoints; if there is one of this number or above, the next one above is used.
        state: plain JSON values.
        contents: bytes or a contiguous array for each file name.

    Returns:
        The checkpoint's folder.

    Raises:
        OSError: names the file; the checkpoints before it are still there.
    """
    before = _numbered(folder)
    # after a resume that learned nothing, or one from an older checkpoint because the newest was damaged
    number = max([number, *(int(path.name) + 1 for path in before)])
    target = folder / FOLDER / str(number)
    beside = target.with_name(f".{number}.part")
    for left in target.parent.glob(".*.part"):  # left by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    try:
        beside.mkdir(parents=True)
        facts = {name: _write_file(beside / name, _buffer(content)) for name, content in contents.items()}
        manifest = {"format": FORMAT, "state": state, "files": facts}
        files.write(beside / MANIFEST, _text(manifest | {"checksum": zlib.crc32(_text(manifest))}))
        with files.naming(target):
            beside.replace(target)
            files.sync(target.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    for path in before:
        shutil.rmtree(path, ignore_errors=True)
    return target


def newest(folder: Path) -> Path | None:
    """The newest whole checkpoint of the run in `folder`; None if there is none."""
    try:
        return load_newest(folder).path
    except ConfigError:
        return None


def load_newest(folder: Path) -> Checkpoint:
    """Opens the newest whole checkpoint of the run in `folder`; raises `ConfigError`, which says why there is none."""
    problem = ""
    for path in reversed(_numbered(folder)):
        try:
            return load(path)
        except ConfigError as error:
            problem = problem or f" ({error})"
    raise ConfigError(f"{folder}: holds no whole checkpoint{problem}; give the folder of a run that has saved one")


def load(path: Path) -> Checkpoint:
    """Opens the checkpoint in the folder `path`; raises `ConfigError` if it is not whole."""
    manifest = path / MANIFEST
    try:
        data = json.loads(files.read(manifest, MAX_MANIFEST_BYTES))
        checksum, version, state = data.pop("checksum"), data["format"], dict(data["state"])
        facts = {name: (int(length), int(crc)) for name, (length, crc) in data["files"].items()}
        sizes = {name: (path / name).stat().st_size for name in facts if _is_plain(path, name)}
        damaged = checksum != zlib.crc32(_text(data))
    except OSError as error:
        raise ConfigError(f"{manifest}: {error.strerror}") from None
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        raise ConfigError(f"{manifest}: not a manifest of this program") from None
    if version != FORMAT:
        raise ConfigError(f"{manifest}: not of format {FORMAT}, which this program reads")
    if damaged:
        raise ConfigError(f"{manifest}: damaged; its checksum is wrong")
    if wrong := [name for name, (length, _) in facts.items() if sizes.get(name) != length]:
        name, length = wrong[0], facts[wrong[0]][0]
        raise ConfigError(f"{path}: {name!r:.80} is not the file of {length} bytes that the manifest names")
    return Checkpoint(path, state, facts)


def _numbered(folder: Path) -> list[Path]:
    """The folders of checkpoints, whole or not, oldest first."""
    paths = [path for path in (folder / FOLDER).glob("[0-9]*") if path.name.isdecimal()]
    return sorted(paths, key=lambda path: int(path.name))


def _is_plain(folder: Path, name: str) -> bool:
    """Whether `name` is a regular file in `folder` itself: a pipe or device may have no end."""
    return Path(name).name == name and (folder / name).is_file()


def _text(manifest: Mapping[str, Any]) -> bytes:
    return json.dumps(manifest, sort_keys=True).encode()


def _write_file(path: Path, buffer: memoryview) -> tuple[int, int]:
    with files.naming(path), path.open("wb") as file:
        file.write(buffer)
        file.flush()
        os.fsync(file.fileno())
    return len(buffer), zlib.crc32(buffer)


def _buffer(content: bytes | Array) -> memoryview:
    view = memoryview(content)  # type: ignore[arg-type]
    return view.cast("B") if view.nbytes else memoryview(bytearray())
