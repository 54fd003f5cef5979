"""`apex-acer plot` as a user meets it."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
from matplotlib import rcParams

from apex_acer.cli import main
from apex_acer.views.figures import FIGURES
from tests.cli.conftest import Refused, assert_refused
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


@pytest.mark.slow
def test_a_folder_of_a_sweep_or_of_runs_stands_for_all_of_its_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(rcParams, "svg.fonttype", "none")
    monkeypatch.chdir(tmp_path)
    for gamma in (0.8, 0.9):
        for seed in range(2):
            config = tiny_run(seed=seed, algorithm__gamma=gamma)
            make_up(Path(f"sweeps/b/gamma={gamma}/seed_{seed}"), config, made_up_rows(seed, 1))
    make_up(Path("runs/a"), tiny_run(algorithm__gamma=0.9), made_up_rows(5, 1))
    (make_up(Path("runs/broken"), tiny_run(), []) / "config.toml").write_text("seed = [")

    def labels() -> list[str]:
        path = Path(capsys.readouterr().out.splitlines()[0])
        return re.findall(r">(gamma=[^<]*)<", path.read_text())

    assert main(["plot", "sweeps/b", "--svg"]) == 0
    assert labels() == ["gamma=0.8 (2 runs)", "gamma=0.9 (2 runs)"]
    assert Path("sweeps/b/plots/returns.svg").exists()
    assert main(["plot", "sweeps", "runs/a", "--svg"]) == 0
    assert labels() == ["gamma=0.8 (2 runs)", "gamma=0.9 (3 runs)"]
    assert Path("plots/returns.svg").exists()
    caplog.clear()
    assert main(["plot", "runs", "--svg"]) == 0
    assert "runs/broken/config.toml" in caplog.text


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
    monkeypatch.delitem(sys.modules, "apex_acer.views.plots", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.axes", None)
    assert_refused(refused, {"plot anything": "pip install 'apex-acer[plot]'"})
