"""What a weights file says of itself, and files of other formats and versions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from apex_acer import __version__
from apex_acer.actor.policy import load_policy
from apex_acer.cli import main
from apex_acer.networks.metadata import FORMAT
from apex_acer.networks.weights import pack, read, write
from tests.conftest import config_error


def rewritten(run: Path, folder: Path, changes: dict[str, Any]) -> Path:
    """The run's weights with another metadata."""
    tensors, metadata = read(run / "weights.safetensors")
    path = folder / "weights.safetensors"
    write(path, pack(tensors, metadata | changes))
    return path


def test_a_file_says_how_it_scored_and_what_wrote_it(finished_run: Path) -> None:
    rows = [json.loads(line) for line in (finished_run / "metrics.jsonl").read_text().splitlines()]
    evaluations = [row for row in rows if row["source"] == "evaluator"]
    assert len(evaluations) >= 2
    best = next(row for row in evaluations if row["eval_return"] == rows[-1]["best_return"])
    for name, row in (("weights", evaluations[-1]), ("best", best)):
        tensors, metadata = read(finished_run / f"{name}.safetensors")
        written = (finished_run / f"{name}.safetensors").read_bytes()
        assert pack(tensors, metadata) == written  # though the score is added later
        greedy = metadata["config"]["evaluation"]["greedy"]
        expected = {key: row[key] for key in ("eval_return", "eval_return_std", "env_steps")}
        assert metadata["score"].items() >= (expected | {"episodes": 4, "greedy": greedy}).items()
        assert "eval_seconds" not in metadata["score"]
        assert metadata["versions"]["apex_acer"] == __version__
        assert metadata["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
        assert metadata["versions"].keys() == {"apex_acer", "torch", "gymnasium", "ale-py", "python"}


def test_what_another_version_wrote_and_this_cannot_read_is_said(finished_run: Path, tmp_path: Path) -> None:
    path = rewritten(finished_run, tmp_path, {"format": FORMAT - 1, "versions": {"apex_acer": "9.8.7"}})
    message = config_error(lambda: load_policy(path))
    for words in (str(path), f"format {FORMAT - 1}", f"reads format {FORMAT}"):
        assert words in message
    assert message.endswith(f"apex_acer 9.8.7 wrote it, this is {__version__}")
    assert "wrote it" not in config_error(
        lambda: load_policy(rewritten(finished_run, tmp_path, {"format": FORMAT - 1}))
    )


def test_loading_a_policy_imports_only_what_acting_needs(finished_run: Path) -> None:
    program = (
        "import sys; from apex_acer import load_policy; policy = load_policy(sys.argv[1])\n"
        "print(type(policy.act([0.0] * 4)).__name__, policy.act([[0.0] * 4] * 3).shape)\n"
        "print(*sorted(sys.modules))"
    )
    command = [sys.executable, "-c", program, str(finished_run / "weights.safetensors")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    actions, modules = done.stdout.splitlines()
    assert actions == "int (3,)"
    assert "apex_acer.actor.policy" in modules.split()
    foreign = {"apex_acer.learner.learner", "apex_acer.environments.vector"}
    foreign |= {"zmq", "msgpack", "ale_py", "gymnasium", "tensorboardX"}
    assert not foreign & set(modules.split())


def test_evaluate_shows_the_stored_score_beside_the_measured_one_and_the_card(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metadata = read(finished_run / "weights.safetensors")[1]
    score = metadata["score"]
    trained = score["env_steps"] + 1000  # the newest weights are usually newer than the last evaluation
    path = rewritten(finished_run, tmp_path, {"env_steps": trained})
    assert main(["evaluate", str(path)]) == 0
    measured, stored = capsys.readouterr().out.splitlines()
    how = "4 greedy episodes" if score["greedy"] else "4 sampled episodes"
    assert measured.startswith(f"CartPole-v1: {how}: mean ")
    for word in (f"{score['eval_return']:.2f}", f"{score['eval_return_std']:.2f}", how, f"{score['env_steps']:,} env"):
        assert word in stored
    assert main(["evaluate", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["env_steps"], shown["stored"]) == (trained, score)
    assert main(["evaluate", str(path), "--card"]) == 0
    out = capsys.readouterr().out
    for text in ("environment  CartPole-v1\n", "episodes, at", f"apex_acer {__version__}", "[algorithm]"):
        assert text in out
    assert main(["evaluate", str(path), "--card", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == metadata | {"env_steps": trained}

    assert main(["evaluate", str(rewritten(finished_run, tmp_path, {"score": None}))]) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith(": none")
    path = rewritten(finished_run, tmp_path, {"score": {"episodes": 3}})
    assert main(["evaluate", str(path), "--card"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert str(path) in error
