"""Folders that killed runs leave are removed by the next run, and no others."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from apex_acer.system import private
from apex_acer.system.private import PrivateFolder
from tests.programs import eventually, processes_of, program


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


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="processes are looked up in /proc")
def test_what_a_run_leaves_whose_processes_are_all_killed_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a place of its own, since a run of a test beside this one would remove the folder, too; an ipc path is short
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as folder_of_runs,
        program(tmp_path / "run", place=Path(folder_of_runs), stop__env_steps=10**9, actors__count=1) as run,
    ):
        place = Path(folder_of_runs)
        monkeypatch.setattr(private, "PLACE", place)
        run.wait_for(lambda: {"learner_0", "actor_0"} <= run.children().keys())
        folder = run.private
        assert folder
        assert folder.parent == place
        private.remove_left_ones()
        assert folder.exists()
        for number in (signal.SIGSTOP, signal.SIGKILL):
            # the manager is killed last: the kernel wakes stopped processes whose group it leaves behind
            for pid in sorted(processes_of(run.pid), reverse=number == signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):  # actors end with the launcher
                    os.kill(pid, number)
        eventually(lambda: not processes_of(run.pid), 5)
        assert folder.exists()

        def removed() -> bool:
            private.remove_left_ones()
            return not folder.exists()

        eventually(removed, 5)  # a killed process holds its files for a moment after it is a zombie
