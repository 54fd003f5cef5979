"""`apex-acer plot` as a user meets it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from apex_acer.cli import main
from apex_acer.figures import FIGURES
from tests.histories import made_up_rows, make_up
from tests.runs import tiny_run


def test_it_prints_the_paths_it_wrote(finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shutil.copytree(finished_run, tmp_path / "run")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"source": "learner", "env_st')  # as while it trains
    assert main(["plot", str(folder), "--svg", "--out", str(tmp_path / "out")]) == 0
    paths = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert paths == [tmp_path / "out" / f"{name}.svg" for name in FIGURES]
    assert all(path.read_bytes().startswith(b"<?xml") for path in paths)
    assert not (folder / "plots").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["plot", "DIR... is missing"]),
        (["absent"], ["'absent'", "no config.toml", "folder of a run"]),
        (["empty"], ["empty", "no metrics yet", "try again"]),
        (["full", "--out", "full/log.txt"], ["out", "full/log.txt", "cannot be written"]),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(
    arguments: list[str],
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    make_up(Path("empty"), tiny_run(), [])
    make_up(Path("full"), tiny_run(), made_up_rows(0, 1, num=3))
    assert main(["plot", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert all(word in error for word in words), error


def test_without_matplotlib_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "apex_acer.plots", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.axes", None)
    assert main(["plot", "anything"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "pip install 'apex-acer[plot]'" in error


def test_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(flag in out for flag in ("DIR", "--out", "--svg"))
