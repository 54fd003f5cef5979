from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from apex_acer.cli import main
from apex_acer.cli.completion import accepted
from tests.processes import children


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Components are measured for a moment only."""
    monkeypatch.setattr("apex_acer.tools.capacity.measure.SECONDS", 0.1)


@pytest.mark.slow
def test_a_plan_says_what_to_expect_and_what_limits_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run.toml"
    run.write_text('base = "cartpole"\n[algorithm]\nreplay_ratio = 1.0\n')
    assert main(["plan", str(run), "--actors", "64", "--cores-per-node", "32", "--gpus", "0"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert {"machines", "expect", "network", "replay", "limit", "advice"} == lines.keys()
    assert lines["machines"] == (
        "2 of 32 cores for actors, 1 more for learners; actors: 64, learners: 1, threads of a learner: 1"
    )
    assert "env steps/s, at most" in lines["expect"]
    assert lines["network"].endswith("10 Gbit/s are 1,250 MB/s each way")
    assert lines["limit"].startswith("the learner; next ")
    assert max(map(len, lines.values())) < 125


@pytest.mark.slow
def test_a_gpu_that_is_not_here_is_told_what_it_must_reach(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "cartpole", "--actors", "2", "--cores-per-node", "4", "--gpus", "1"]
    assert main([*command, "--samples-per-s", "1000", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["plan"]["limits"]["learner"] < 1000 / 9  # a fresh sample and eight replayed ones
    assert said["machines"]["learners"] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--actors 0", ["--actors", "0", "1 or more"]),
        ("--actors -3", ["--actors", "-3"]),
        ("--gpus -1", ["--gpus", "0 or more"]),
        ("--cores-per-node 0", ["--cores-per-node"]),
        ("--network-gbit 0", ["--network-gbit", "above 0"]),
        ("--samples-per-s nan", ["--samples-per-s", "above 0"]),
        ("--learners 3 --actors 3", ["learner.count", "divisor of learner.batch_size"]),
        ("--learners 4 --actors 2", ["learner.count", "actors.count"]),
        ("cartpol", ["did you mean 'cartpole' or "]),
    ],
)
def test_refusals_are_one_line(arguments: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *arguments.split()]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert all(word in said.err for word in words)


def test_compressing_names_the_extra_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "apex_acer.engines.ray.link", raising=False)
    monkeypatch.setitem(sys.modules, "lz4", None)
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    assert main(["plan", "cartpole", "--compress"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "pip install 'apex-acer[ray]'" in said


def test_a_piece_that_fails_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run.toml"
    run.write_text('[environment]\nid = "CartPole-v1"\n[network]\ntorso = "json:dumps"\n')
    assert main(["plan", str(run)]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.endswith("train the run to see more\n")
    assert not children(os.getpid())


def test_completion_offers_its_flags_and_runs() -> None:
    found = accepted("plan")
    assert {"--actors", "--cores-per-node", "--gpus", "--learners", "--compress", "--json"} <= found.flags.keys()
    assert "pong" in found.words.split()
    assert found.files == "*.toml"
