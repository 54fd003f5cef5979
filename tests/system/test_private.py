"""Folders that killed runs leave are removed by the next run, and no others."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from apex_acer.system import private
from apex_acer.system.private import PrivateFolder


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "PLACE", tmp_path)


def test_only_what_nobody_holds_is_removed(tmp_path: Path) -> None:
    living, left, passed_on = PrivateFolder(), PrivateFolder("ray-"), PrivateFolder()
    os.close(left.lock)
    heir = subprocess.Popen(["sleep", "60"], pass_fds=[passed_on.lock])
    os.close(passed_on.lock)
    (tmp_path / "apex-acer-unknown").mkdir()
    (tmp_path / "apex-acer-link").symlink_to(living.path)
    (tmp_path / "apex-acer-file").touch()
    kept = {path.name for path in tmp_path.iterdir()} - {left.path.name}
    new = PrivateFolder()
    assert {path.name for path in tmp_path.iterdir()} == kept | {new.path.name}
    heir.kill()
    heir.wait()
    private.remove_left_ones()
    assert not passed_on.path.exists()
    new.remove()
    living.remove()
    assert {path.name for path in tmp_path.iterdir()} == {"apex-acer-unknown", "apex-acer-link", "apex-acer-file"}


def test_a_folder_that_is_taken_for_one_left_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    open_, made = os.open, list[Path]()

    def open_late(path: Path, *arguments: int, **more: Any) -> int:
        """Another run looks just after the lock was made and before it is held."""
        lock = open_(path, *arguments, **more)
        if not made:
            made.append(path)
            private.remove_left_ones()
        return lock

    monkeypatch.setattr(os, "open", open_late)
    folder = PrivateFolder()
    assert folder.path != made[0].parent
    assert not made[0].exists()
    assert (folder.path / "lock").exists()
