from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from apex_acer.cli import main
from tests.conftest import Refused, assert_refused


@pytest.mark.slow
def test_a_plan_says_what_to_expect_and_what_limits_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("apex_acer.tools.capacity.measure.SECONDS", 0.1)
    run = tmp_path / "run.toml"
    run.write_text('base = "cartpole"\n[algorithm]\nreplay_ratio = 1.0\n')
    assert main(["plan", str(run), "--actors", "64", "--cores-per-node", "32", "--gpus", "0"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert {"machines", "expect", "network", "replay", "limit", "advice"} == lines.keys()
    assert lines["machines"].startswith("2 of 32 cores for actors, 1 more for learners; actors: 64, learners: 1")
    assert "env steps/s, at most" in lines["expect"]
    assert lines["network"].endswith("10 Gbit/s are 1,250 MB/s each way")
    assert lines["limit"].startswith("the learner; next ")
    assert max(map(len, lines.values())) < 125
    # a GPU that is not here is told what it must reach
    command = ["plan", "cartpole", "--actors", "2", "--cores-per-node", "4", "--gpus", "1"]
    assert main([*command, "--samples-per-s", "1000", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["plan"]["limits"]["learner"] < 1000 / 9  # a fresh sample and eight replayed ones
    assert said["machines"]["learners"] == 1


def test_refusals_are_one_line(refused: Refused) -> None:
    table = {
        "--actors 0": "--actors … 0 … 1 or more",
        "--gpus -1": "--gpus … 0 or more",
        "--network-gbit 0": "--network-gbit … above 0",
        "--samples-per-s nan": "--samples-per-s … above 0",
        "--learners 3 --actors 3": "learner.count … divisor of learner.batch_size",
        "--learners 4 --actors 2": "learner.count … actors.count",
        "cartpole-remote": "cartpole-remote … clients decide",
        "cartpol": "did you mean 'cartpole' or ",
    }
    assert_refused(refused, {f"plan {arguments}": parts for arguments, parts in table.items()})


def test_a_piece_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such torso")

    monkeypatch.setattr("apex_acer.tools.capacity.measure.measure", fail)
    assert main(["plan", "cartpole"]) == 1
    assert capsys.readouterr().err == "apex-acer: cartpole: no such torso; train the run to see more\n"
