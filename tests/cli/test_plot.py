"""`apex-acer plot` as a user meets it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from apex_acer.cli import main
from apex_acer.views.figures import FIGURES
from tests.conftest import Refused, assert_refused
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


def test_a_folder_of_a_sweep_or_of_runs_stands_for_all_of_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[list[Path], Path]] = []

    def draw(runs: list[Path], out: Path, form: str) -> list[Path]:
        drawn.append((runs, out))
        return []

    monkeypatch.setattr("apex_acer.views.plots.plot_runs", draw)
    monkeypatch.chdir(tmp_path)
    sweep, single = [Path(f"sweeps/b/gamma={gamma}/seed_0") for gamma in (0.8, 0.9)], Path("runs/a")
    for folder in (*sweep, single):
        make_up(folder, tiny_run(), made_up_rows(0, 1, num=3))
    for folders in (["sweeps/b"], ["sweeps", "runs/a"]):
        assert main(["plot", *folders]) == 0
    assert drawn == [(sweep, Path("sweeps/b/plots")), ([*sweep, single], Path("plots"))]


def test_bad_input_gets_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    monkeypatch.chdir(tmp_path)
    make_up(Path("empty"), tiny_run(), [])
    make_up(Path("full"), tiny_run(), made_up_rows(0, 1, num=3))
    table = {
        "plot": "plot … DIR... is missing",
        "plot full absent": "'absent' … holds no run … folder of a run",
        "plot full/log.txt": "'full/log.txt' … holds no run",
        "plot empty": "empty … no metrics yet … try again",
        "plot full --out full/log.txt": "out … full/log.txt … cannot be written",
    }
    assert_refused(refused, table)
