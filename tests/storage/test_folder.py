"""Folders of runs: nobody else's, and found wherever they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from apex_acer.storage.folder import foreign, make_new
from apex_acer.storage.runlog import Log


def test_a_new_folder_is_nobody_else_s(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "mine"
    made = [make_new(path) for _ in range(3)]
    assert made == [path, path.with_name("mine-2"), path.with_name("mine-3")]
    assert all(folder.is_dir() for folder in made)


def test_what_a_start_left_is_not_foreign(tmp_path: Path) -> None:
    assert foreign(tmp_path) == ""
    (tmp_path / "log.txt").touch()
    assert foreign(tmp_path) == ""
    Log(tmp_path).say("manager", [b"started"])
    (tmp_path / "token").write_text("secret")
    assert foreign(tmp_path) == ""
    (tmp_path / "notes").touch()
    assert foreign(tmp_path) == "notes"


@pytest.mark.parametrize("text", ["mine\n", "2026-01-01 12:00:00,000 of another program\n", "\n"])
def test_a_log_of_another_program_is_foreign(tmp_path: Path, text: str) -> None:
    (tmp_path / "log.txt").write_text(text)
    assert foreign(tmp_path) == "log.txt"
