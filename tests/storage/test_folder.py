"""Folders of runs: nobody else's, and found wherever they are."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from apex_acer.storage.folder import foreign, held, make_new, where
from apex_acer.storage.runlog import Log


def test_a_new_folder_is_nobody_else_s(tmp_path: Path) -> None:
    """Two runs that begin at once have two folders."""
    path = tmp_path / "runs" / "mine"
    with ThreadPoolExecutor(8) as threads:
        made = set(threads.map(make_new, [path] * 8))
    assert made == {path, *(path.with_name(f"mine-{number}") for number in range(2, 9))}
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
    (tmp_path / "log.txt").write_text("2026-01-01 12:00:00,000 of another program\n")
    assert foreign(tmp_path) == "log.txt"


def test_a_folder_is_found_where_it_is(tmp_path: Path) -> None:
    path, moved = tmp_path / "run", tmp_path / "else" / "where"
    path.mkdir()
    moved.parent.mkdir()
    with held(path, "0123456789"):
        assert where(path) == path
        path.rename(moved)
        assert where(path) == moved
        path.mkdir()  # somebody else's
        assert where(path) == moved
        moved.parent.rename(tmp_path / "anywhere")
        assert where(path) == tmp_path / "anywhere" / "where"
    assert where(path) == path
    (tmp_path / "link").symlink_to("run")
    with held(tmp_path / "link", "0123456789"):
        assert where(tmp_path / "link") == tmp_path / "link"


def test_a_folder_that_is_gone_is_made_anew_beside_that_of_anybody_else(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "run"
    path.mkdir(parents=True)
    with held(path, "0123456789"):
        shutil.rmtree(path.parent)
        assert where(path) == path.with_name("run-01234567")
        path.mkdir()
        where(path).rename(tmp_path / "moved")
        assert where(path) == tmp_path / "moved"
