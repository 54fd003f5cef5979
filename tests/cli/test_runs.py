"""`apex-acer runs` as a user meets it."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from apex_acer.cli import main
from apex_acer.cli.showing import RANKED
from tests.conftest import Refused, assert_refused
from tests.histories import made_up_rows, make_up
from tests.runs import tiny_run

ERROR = "actor_0: ZeroDivisionError: " + "and so on " * 30 + "to the end"
LONG = "a-long-name-of-a-run-[red]-that-is-not-cut-20261121-193032-12345"
FAILED = {"state": "failed", "reason": "", "error": ERROR}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the test stands, with two runs in `runs`."""
    monkeypatch.chdir(tmp_path)
    scores = made_up_rows(0, 100, num=20)
    make_up(Path("runs") / LONG, tiny_run(seed=7), scores, FAILED)
    (make_up(Path("runs/broken"), tiny_run(), []) / "config.toml").write_text("seed = [")
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_the_table_is_plain_and_uncut_where_there_is_no_terminal_and_json_has_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["runs"]) == 0
    out = capsys.readouterr().out
    head, *rows = out.splitlines()
    assert all(name in head for name in RANKED)
    assert len(rows) == 2
    run = next(row for row in rows if row.startswith("a-long"))
    for text in (LONG, "CartPole-v1", "acer", " 7 "):
        assert text in run
    assert "2,000 / 1,000" in run
    assert run.rstrip().endswith("to the end; no checkpoint")
    assert "unreadable: " in next(row for row in rows if row.startswith("broken"))
    assert "\x1b" not in out
    assert "…" not in out
    assert main(["runs", "runs", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    runs = {run["name"]: run for run in json.loads(line)}
    assert runs["broken"]["state"] == "unreadable"
    (run,) = (run for name, run in runs.items() if name != "broken")
    facts = {"environment": "CartPole-v1", "algorithm": "acer", "seed": 7, "env_steps": 2000, "budget": 1000}
    assert facts.items() <= run.items()
    assert run["best"] >= run["last"] > 0
    assert (run["state"], run["checkpoint"]) == ("failed", False)


def on_terminal(folder: Path, columns: int) -> list[str]:
    """The lines that a terminal of so many columns gets."""
    controller, terminal = pty.openpty()
    command, environment = [sys.executable, "-m", "apex_acer", "runs"], {"COLUMNS": str(columns), "TERM": "xterm"}
    with subprocess.Popen(command, cwd=folder, stdout=terminal, env=os.environ | environment) as process:
        os.close(terminal)
        shown = b""
        with contextlib.suppress(OSError):  # how the end of a terminal is told on Linux
            while data := os.read(controller, 65536):
                shown += data
        assert process.wait(60) == 0
    os.close(controller)
    return re.sub(r"\x1b\[[\d;]*m", "", shown.decode()).splitlines()


def test_a_terminal_shows_whole_names_and_the_columns_that_fit(folder: Path, tmp_path: Path) -> None:
    name = "cartpole-v1-20261121-193032"
    make_up(tmp_path / "few/runs" / name, tiny_run(), made_up_rows(0, 100, num=20), FAILED)
    head, row = on_terminal(tmp_path / "few", 80)
    assert re.findall(r"env steps|\w+", head) == ["name", "env steps", "best", "last", "wall", "age", "state"]
    assert row.startswith(f"{name} ")
    assert "failed" in row
    assert max(len(head), len(row)) <= 80
    assert row.endswith("…")  # of the reason as much as there is room for
    head, *rows = on_terminal(folder, 40)  # a name longer than the terminal is broken by that alone
    assert head.split() == ["name", "state"]
    assert any(line.startswith(f"{LONG} failed") for line in rows)
    assert len(rows) == 2


def test_no_runs_and_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(refused, {"runs": "'runs' is no folder"})
    Path("runs").mkdir()
    assert main(["runs"]) == main(["runs", "--json"]) == 0
    assert capsys.readouterr().out == "no runs in runs\n[]\n"
