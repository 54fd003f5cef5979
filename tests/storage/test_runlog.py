"""Lines of a run's log: whole ones, of everybody, whatever the disk does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from apex_acer.storage import runlog
from apex_acer.storage.runlog import Log, Speech, Transcript, speaking_as

HEAD = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ", re.MULTILINE)


def said(folder: Path) -> str:
    """The log without its dates and times, which every line must have."""
    text = (folder / "log.txt").read_text()
    assert len(HEAD.findall(text)) == text.count("\n")
    return HEAD.sub("", text)


def test_lines_are_whole_and_have_a_speaker(tmp_path: Path) -> None:
    speech = Speech(Log(tmp_path), "actor_3")
    stream = speech.stream()
    print("one", end="", file=stream)
    assert said(tmp_path) == ""
    print(" line\nanother\n\nhalf\udcff", end="", file=stream)
    assert said(tmp_path) == "actor_3: one line\nactor_3: another\nactor_3: \n"
    speech.end_line()
    assert said(tmp_path).endswith("actor_3: half\\udcff\n")
    speech.write(b"." * 10_000)
    assert said(tmp_path).endswith(f"actor_3: {'.' * 10_000}\n"), "what has no end fills memory"
    speech.write(b"\x1b[2Jwiped\n")
    assert said(tmp_path).endswith("actor_3: \\x1b[2Jwiped\n"), "a log may be shown on a terminal"
    with speaking_as("learner"):
        Speech(Log(tmp_path)).write(b"of one of several\n")
    assert said(tmp_path).endswith("learner: of one of several\n")


def test_processes_do_not_mix_their_lines(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from apex_acer.storage.runlog import Log, Speech
stream = Speech(Log(Path(sys.argv[1])), sys.argv[2]).stream()
for number in range(700):
    print(sys.argv[2], "says", number, "x" * 200, file=stream)
"""
    names = ("actor_0", "actor_1", "learner")
    started = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path), name]) for name in names]
    assert [process.wait(60) for process in started] == [0, 0, 0]
    lines = said(tmp_path).splitlines()
    for name in names:
        own = [line for line in lines if line.startswith(f"{name}: ")]
        assert own == [f"{name}: {name} says {number} {'x' * 200}" for number in range(700)]
    assert len(lines) == 2100


def test_what_is_printed_past_python_is_copied_once_and_all_is_shown(tmp_path: Path) -> None:
    log = Log(tmp_path)
    transcript = Transcript(tmp_path / "actor_0.out", log, "actor_0")
    with transcript.open() as file:
        stream = Speech(log, "actor_0", file.fileno()).stream()
        print("in python", file=stream)
        os.write(file.fileno(), b"past it\nhalf")
        transcript.copy()
        transcript.copy()
        assert said(tmp_path) == "actor_0: in python\nactor_0: past it\n"
        os.write(file.fileno(), b" a line\n")
        print("again", file=stream)
        os.write(file.fileno(), b"killed in the midst")
    transcript.copy()
    transcript.copy(to_the_end=True)
    words = ["in python", "past it", "again", "half a line", "killed in the midst"]
    assert said(tmp_path).splitlines() == [f"actor_0: {line}" for line in words]
    assert transcript.last() == "in python\npast it\nhalf a line\nagain\nkilled in the midst"


def test_a_process_that_prints_without_end_fills_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runlog, "LONGEST_TRANSCRIPT", 1000)
    log = Log(tmp_path)
    transcript = Transcript(tmp_path / "actor_0.out", log, "actor_0")
    with transcript.open() as file:
        for _ in range(100):
            Speech(log, "actor_0", file.fileno()).write(b"x" * 99 + b"\n")
            transcript.copy()
            assert (tmp_path / "actor_0.out").stat().st_size < 1200
        os.write(file.fileno(), b"the end\n")
    transcript.copy()
    assert said(tmp_path).splitlines()[-1] == "actor_0: the end"
    assert said(tmp_path).count("x" * 99) == 100


def test_a_full_disk_ends_nobody_and_the_transcript_has_it(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    (tmp_path / "log.txt").symlink_to("/dev/full")
    log = Log(tmp_path)
    transcript = Transcript(tmp_path / "actor_0.out", log, "actor_0")
    with transcript.open() as file:
        print("cannot be written", file=Speech(log, "actor_0", file.fileno()).stream())
        os.write(file.fileno(), b"nor this\n")
    transcript.copy()
    assert transcript.last() == "cannot be written\nnor this\n"
