"""Checkpoints are whole or do not count, whatever interrupts them or is done to them."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import shutil
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apex_acer.config import ConfigError
from apex_acer.storage import checkpoint
from apex_acer.storage.checkpoint import FOLDER, MANIFEST, load, newest, write
from tests.conftest import config_error

Contents = dict[str, Any]
STATE = {"env_steps": 7, "wall_s": 1e-05, "best": None, "nested": {"list": [1, -2.5, "é", True]}}


def contents(seed: int = 0) -> Contents:
    """Raw bytes, and an array of every type that replay holds."""
    random = np.random.default_rng(seed)
    numbers = random.integers(0, 250, (5, 3))
    arrays = {name: numbers.astype(name) for name in ("uint8", "int32", "int64", "float32")}
    empty = {"empty": np.zeros((0, 3), np.float32), "nothing": b""}
    return {**arrays, "bool": numbers > 100, **empty, "bytes": random.bytes(100)}


def save(folder: Path, number: int) -> Path:
    """A checkpoint whose contents tell its number."""
    return write(folder, number, {"number": number}, contents(number))


def read_back(path: Path, given: Contents) -> Contents:
    """All files of a checkpoint, in what `given` had."""
    opened = load(path)
    found: Contents = {}
    for name, content in given.items():
        if isinstance(content, bytes):
            found[name] = opened.read(name)
        else:
            found[name] = opened.view(name, content.shape, str(content.dtype))
    return found


def assert_whole(path: Path, number: int) -> None:
    given = contents(number)
    assert load(path).state == {"number": number}
    assert load(path).names == sorted(given)
    for name, content in read_back(path, given).items():
        np.testing.assert_array_equal(content, given[name], err_msg=name)


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in (folder / FOLDER).iterdir() if not path.name.isdecimal()]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, 12, STATE, contents())
    assert path == tmp_path / FOLDER / "12" == newest(tmp_path)
    assert load(path).state == STATE
    found = read_back(path, contents())
    for name, content in contents().items():
        np.testing.assert_array_equal(found[name], content)
        assert load(path).read(name) == bytes(memoryview(content))
    assert leftovers(tmp_path) == []


def test_there_is_none_at_first(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    assert newest(tmp_path / "nowhere") is None
    (tmp_path / FOLDER / "not a number").mkdir(parents=True)
    (tmp_path / FOLDER / "12").mkdir()
    assert newest(tmp_path) is None


def test_the_one_before_goes_once_the_new_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removed, rmtree = [], shutil.rmtree

    def noted(path: Path, **keywords: Any) -> None:
        if path.name.isdecimal():
            removed.append(int(path.name))
            assert_whole(tmp_path / FOLDER / "9", 9)
        rmtree(path, **keywords)

    save(tmp_path, 5)
    monkeypatch.setattr(shutil, "rmtree", noted)
    save(tmp_path, 9)
    assert removed == [5]
    assert os.listdir(tmp_path / FOLDER) == ["9"]


def test_numbers_only_grow(tmp_path: Path) -> None:
    for number, expected in ((5, 5), (5, 6), (3, 7), (8, 8), (30, 30), (29, 31)):
        assert write(tmp_path, number, {}, {}).name == str(expected)
        assert os.listdir(tmp_path / FOLDER) == [str(expected)]


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path) -> None:
    left = tmp_path / FOLDER / ".4.part"
    left.mkdir(parents=True)
    (left / "replay.obs").write_bytes(b"half")
    (tmp_path / FOLDER / "4").mkdir()  # it was removing it
    save(tmp_path, 7)
    assert os.listdir(tmp_path / FOLDER) == ["7"]


# ── interrupted ──


def failing(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, call: int, error: BaseException) -> list[int]:
    """Has the `call`-th call of `place.name` raise `error`; the calls so far."""
    real, calls = getattr(place, name), [0]

    def sometimes(*arguments: Any, **keywords: Any) -> Any:
        calls[0] += 1
        if calls[0] == call:
            raise error
        return real(*arguments, **keywords)

    monkeypatch.setattr(place, name, sometimes)
    return calls


STEPS = [(Path, "mkdir", 1), (Path, "open", 10), (os, "fsync", 11), (Path, "replace", 2), (zlib, "crc32", 9)]


@pytest.mark.parametrize(("place", "name", "least"), STEPS, ids=[step[1] for step in STEPS])
def test_an_interrupted_write_leaves_the_one_before(tmp_path: Path, place: Any, name: str, least: int) -> None:
    """Each call of what it is made of fails in turn."""
    before = save(tmp_path, 1)
    for call in range(1, 100):
        with pytest.MonkeyPatch.context() as monkeypatch:
            failing(monkeypatch, place, name, call, KeyboardInterrupt())
            try:
                save(tmp_path, 2)
                break
            except KeyboardInterrupt:
                pass
        assert leftovers(tmp_path) == []
        if newest(tmp_path) != before:  # all was done but to put it on the disk
            assert (name, call) == ("fsync", least)
            assert_whole(tmp_path / FOLDER / "2", 2)
            shutil.rmtree(tmp_path / FOLDER / "2")
        assert_whole(before, 1)
    assert call == least + 1
    assert_whole(tmp_path / FOLDER / "2", 2)
    assert os.listdir(tmp_path / FOLDER) == ["2"]


@pytest.mark.parametrize(
    ("place", "name", "call"), [(os, "fsync", 1), (os, "fsync", 11), (Path, "replace", 1), (Path, "replace", 2)]
)
def test_a_full_disk_is_an_error_that_names_the_file_and_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, call: int
) -> None:
    before = save(tmp_path, 1)
    failing(monkeypatch, place, name, call, OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(OSError, match="No space left on device") as raised:
        save(tmp_path, 2)
    assert str(raised.value).count(str(tmp_path / FOLDER)) == 1
    assert raised.value.errno == errno.ENOSPC
    assert leftovers(tmp_path) == []
    assert_whole(before, 1)


# ── damaged ──


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """A whole checkpoint and a newer one, both there."""
    kept, older = tmp_path / "kept", save(tmp_path, 1)
    shutil.move(older, kept)
    newer = save(tmp_path, 2)
    shutil.move(kept, older)
    return older, newer


def forge(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Another manifest, with the right checksum."""
    manifest = json.loads((path / MANIFEST).read_text())
    del manifest["checksum"]
    manifest = change(manifest)
    if isinstance(manifest, dict):
        manifest["checksum"] = zlib.crc32(json.dumps(manifest, sort_keys=True).encode())
    (path / MANIFEST).write_text(json.dumps(manifest))


def edit(path: Path) -> None:
    text = (path / MANIFEST).read_text()
    (path / MANIFEST).write_text(text.replace('"number": 2', '"number": 3'))


SPOILT: dict[str, Callable[[Path], None]] = {
    "shorter": lambda path: os.truncate(path / "int64", 39),
    "longer": lambda path: os.truncate(path / "int64", 200),
    "missing": lambda path: (path / "uint8").unlink(),
    "a shorter manifest": lambda path: os.truncate(path / MANIFEST, 100),
    "a longer manifest": lambda path: os.truncate(path / MANIFEST, 10**12),
    "no manifest": lambda path: (path / MANIFEST).unlink(),
    "an edited manifest": edit,
    "another format": lambda path: forge(path, lambda manifest: manifest | {"format": checkpoint.FORMAT + 1}),
    "a list": lambda path: forge(path, list),
    "a number": lambda path: forge(path, lambda manifest: 1.5),
    "no state": lambda path: forge(path, lambda manifest: {"format": checkpoint.FORMAT, "files": {}}),
    "a length is text": lambda path: forge(path, lambda manifest: manifest | {"files": {"bytes": ["x", 0]}}),
    "a length is infinite": lambda path: forge(path, lambda manifest: manifest | {"files": {"bytes": [math.inf, 0]}}),
}
"""More are in checks/chaos/files.py."""


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_what_is_not_whole_is_refused_and_the_one_before_counts(
    two: tuple[Path, Path], spoil: Callable[[Path], None]
) -> None:
    older, newer = two
    folder = newer.parent.parent
    assert newest(folder) == newer
    spoil(newer)
    assert config_error(lambda: load(newer)).startswith(str(newer))
    assert newest(folder) == older
    assert_whole(older, 1)


def flipped(path: Path) -> Iterator[None]:
    """Flips each bit of a file in turn."""
    whole = path.read_bytes()
    for position in range(8 * len(whole)):
        data = bytearray(whole)
        data[position // 8] ^= 1 << position % 8
        path.write_bytes(data)
        yield
    path.write_bytes(whole)


def test_every_flipped_bit_of_a_file_is_found(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    opened = load(path)
    for _ in flipped(path / "int32"):
        message = config_error(lambda: opened.read("int32"))
        assert message.startswith(str(path / "int32"))
        assert "damaged" in message
    assert_whole(path, 1)


def test_every_flipped_bit_of_a_manifest_is_found(tmp_path: Path) -> None:
    path = write(tmp_path, 1, {"wall_s": 1e-05, "name": "é"}, {"bytes": b"some"})
    opened, accepted = load(path), 0
    for _ in flipped(path / MANIFEST):
        with contextlib.suppress(ConfigError):
            assert load(path) == opened
            accepted += 1
    assert accepted == 2  # 1e-05 and 1E-05 are one number, \u00e9 and \u00E9 one letter


def test_files_that_do_not_fit_or_are_not_there_are_named(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    opened = load(path)
    message = config_error(lambda: opened.view("int32", (3,), "int32"))
    assert message == f"{path / 'int32'}: 60 bytes, this run needs 12"
    assert "names no file 'absent'" in config_error(lambda: opened.read("absent"))
    os.truncate(path / "int32", 59)  # while it is read
    assert "damaged" in config_error(lambda: opened.read("int32"))
    assert "greater than file size" in config_error(lambda: opened.view("int32", (5, 3), "int32"))
    (path / "int32").unlink()
    message = config_error(lambda: opened.read("int32"))
    assert message == f"{path / 'int32'}: No such file or directory"


# ── memory ──


def test_large_arrays_are_not_copied(tmp_path: Path) -> None:
    large = np.arange(6 << 18, dtype=np.int64).reshape(6, -1)  # 12 MB
    tracemalloc.start()
    try:
        path = write(tmp_path, 1, {}, {"large": large})
        found = load(path).view("large", large.shape, "int64")
        assert tracemalloc.get_traced_memory()[1] < 2e6
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(found, large)
