"""What reaches a terminal or a log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from apex_acer.cli import main
from apex_acer.config import EnvironmentConfig, RunConfig
from apex_acer.networks.metadata import describe
from apex_acer.networks.weights import pack, write
from apex_acer.system.output import printable, printable_lines, say
from tests.runs import CARTPOLE

EVIL = "\x1b[2J\x9b31m\u202egame\a"


def test_text_shows_itself_and_does_nothing_else() -> None:
    assert printable("é [red] ▁") == "é [red] ▁"
    assert printable(EVIL) == "\\x1b[2J\\x9b31m\\u202egame\\x07"
    assert printable("one\r\ntwo\tthree") == "one  two three"
    assert printable_lines(f"one\n  two{EVIL}\n") == f"one\n  two{printable(EVIL)}\n"


def test_a_stream_that_takes_nothing_ends_nothing() -> None:
    read, written = os.pipe()
    stream = os.fdopen(written, "w", encoding="ascii")
    assert say("é", stream)
    assert os.read(read, 10) == b"?\n"
    os.close(read)
    assert not say("gone", stream)
    with pytest.raises(BrokenPipeError):
        stream.close()


def test_nothing_that_a_file_holds_reaches_the_terminal_raw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A weights file's metadata, a run's log, and the name of a folder."""
    weights, run = tmp_path / "weights.safetensors", tmp_path / f"run{EVIL}"
    config = RunConfig(environment=EnvironmentConfig(id=EVIL))
    write(weights, pack({}, describe(config, CARTPOLE, env_steps=1, updates=2, versions={EVIL: EVIL})))
    run.mkdir()
    (run / "config.toml").write_text('[environment]\nid = "\\u001b[2J"\n')
    (run / "log.txt").write_text(f"2026-01-01 00:00:00,000 failed: {EVIL}\n")
    for command in ["evaluate", str(weights), "--card"], ["runs", str(tmp_path)], ["plot", f"{tmp_path}/{EVIL}"]:
        main(command)
        captured = capsys.readouterr()
        assert "[2J" in captured.out + captured.err
        assert all(letter.isprintable() or letter == "\n" for letter in captured.out + captured.err)
