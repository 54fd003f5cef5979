"""What a weights file says of itself, and files of other formats and versions."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from apex_acer import __version__
from apex_acer.actor.policy import load_policy
from apex_acer.cli import main
from apex_acer.manager.manager import train
from apex_acer.networks.metadata import FORMAT
from apex_acer.networks.weights import pack, read, unpack, write
from tests.conftest import config_error
from tests.runs import tiny_run


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run with evaluations."""
    folder = tmp_path_factory.mktemp("run")
    train(tiny_run(folder, stop__env_steps=700, evaluation__every=300, evaluation__greedy=False))
    return folder


def rewritten(run_folder: Path, folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Path:
    """The run's weights with another metadata."""
    tensors, metadata = read(run_folder / "weights.safetensors")
    path = folder / "weights.safetensors"
    write(path, pack(tensors, change(metadata)))
    return path


def test_a_file_says_how_it_scored_and_what_wrote_it(run_folder: Path) -> None:
    rows = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    evaluations = [row for row in rows if row["source"] == "evaluator"]
    best = next(row for row in evaluations if row["eval_return"] == rows[-1]["best_return"])
    for name, row in (("weights", evaluations[-1]), ("best", best)):
        metadata = load_policy(run_folder / f"{name}.safetensors").metadata
        score = metadata["score"]
        assert {key: score[key] for key in ("eval_return", "eval_return_std")} == {
            key: row[key] for key in ("eval_return", "eval_return_std")
        }
        assert (score["episodes"], score["greedy"], score["env_steps"]) == (4, False, row["env_steps"])
        assert "eval_seconds" not in score
        assert metadata["versions"]["apex_acer"] == __version__
        assert metadata["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
        assert metadata["versions"].keys() == {"apex_acer", "torch", "gymnasium", "ale-py", "python"}
    assert len(evaluations) >= 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda metadata: metadata | {"format": FORMAT + 1}, [f"format {FORMAT + 1}", f"reads format {FORMAT}"]),
        (lambda metadata: metadata | {"format": FORMAT - 1}, [f"format {FORMAT - 1}", f"reads format {FORMAT}"]),
        (lambda metadata: metadata | {"config": metadata["config"] | {"speed": 3}}, ["unknown key speed"]),
    ],
)
def test_what_another_version_wrote_and_this_cannot_read_is_said(
    run_folder: Path, tmp_path: Path, change: Any, words: list[str]
) -> None:
    path = rewritten(run_folder, tmp_path, lambda metadata: change(metadata) | {"versions": {"apex_acer": "9.8.7"}})
    message = config_error(lambda: load_policy(path))
    for word in (str(path), *words, f"apex_acer 9.8.7 wrote it, this is {__version__}"):
        assert word in message
    assert "wrote it" not in config_error(lambda: load_policy(rewritten(run_folder, tmp_path, change)))


def test_loading_a_policy_imports_only_what_acting_needs(run_folder: Path) -> None:
    program = (
        "import sys; from apex_acer import load_policy; policy = load_policy(sys.argv[1])\n"
        "print(type(policy.act([0.0] * 4)).__name__, policy.act([[0.0] * 4] * 3).shape)\n"
        "print(*sorted(sys.modules))"
    )
    command = [sys.executable, "-c", program, str(run_folder / "weights.safetensors")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    actions, modules = done.stdout.splitlines()
    assert actions == "int (3,)"
    foreign = {
        "apex_acer.learner.learner",
        "apex_acer.environments.vector",
        "zmq",
        "msgpack",
        "ale_py",
        "gymnasium",
        "tensorboardX",
    }
    assert not foreign & set(modules.split())
    assert "apex_acer.actor.policy" in modules.split()


def test_evaluate_shows_the_stored_score_beside_the_measured_one(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    score = read(run_folder / "weights.safetensors")[1]["score"]
    trained = score["env_steps"] + 1000  # the newest weights are usually newer than the last evaluation
    path = rewritten(run_folder, tmp_path, lambda metadata: metadata | {"env_steps": trained})
    assert main(["evaluate", str(path)]) == 0
    measured, stored = capsys.readouterr().out.splitlines()
    assert measured.startswith("CartPole-v1: 4 sampled episodes: mean ")
    figures = f"mean {score['eval_return']:.2f}, std {score['eval_return_std']:.2f} of 4 sampled episodes"
    assert stored == f"its run's evaluation: {figures}, at {score['env_steps']:,} env steps"
    assert main(["evaluate", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["env_steps"], shown["stored"]) == (trained, score)
    assert main(["evaluate", str(rewritten(run_folder, tmp_path, lambda metadata: metadata | {"score": None}))]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "its run's evaluation: none"


def test_the_card_is_printed(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_folder / "weights.safetensors"
    assert main(["evaluate", str(path), "--card"]) == 0
    out = capsys.readouterr().out
    for text in (
        "environment  CartPole-v1\n",
        "4 sampled episodes, at",
        f"apex_acer {__version__}",
        "[algorithm]",
    ):
        assert text in out
    assert main(["evaluate", str(path), "--card", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == read(path)[1]


def test_a_card_that_lacks_what_is_printed_is_refused(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = rewritten(run_folder, tmp_path, lambda metadata: metadata | {"score": {"episodes": 3}})
    assert main(["evaluate", str(path), "--card"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert str(path) in error


def test_the_tensors_are_as_they_were(run_folder: Path) -> None:
    """Of the best file, whose metadata got its score afterwards."""
    path = run_folder / "best.safetensors"
    tensors, metadata = read(path)
    assert pack(tensors, metadata) == path.read_bytes()
    assert unpack(path.read_bytes()).keys() == read(run_folder / "weights.safetensors")[0].keys()
