"""The command line as a user meets it: real subprocesses, their output and exit codes."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from apex_acer.cli import main, parse_train
from apex_acer.runfile import presets

COMMAND = [str(Path(sys.executable).with_name("apex-acer"))]
TINY = ["--actors", "1", "--actors.environments", "2", "--steps", "400", "--evaluation.every", "100000"]


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=90, cwd=cwd)


def test_flags_override_keys_and_short_forms_reach_theirs() -> None:
    flags = "--seed 7 --actors 3 --steps 123 --until 9.5 --engine serial --out a --load b --json"
    config, as_json = parse_train(["cartpole", *flags.split(), "--algorithm.unroll-length", "5"])
    assert (config.seed, config.actors.count, config.stop.env_steps, config.stop.at_return) == (7, 3, 123, 9.5)
    assert (config.engine, config.out, config.load, config.algorithm.unroll_length) == ("serial", "a", "b", 5)
    assert as_json
    assert config.environment.id == "CartPole-v1"


def test_presets_are_all_listed_uncut(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(presets())


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_names_every_verb(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert all(f"apex-acer {verb}" in out for verb in ("train", "evaluate", "sweep", "presets"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("train nope", ["'nope'", "cartpole"]),
        ("train missing.toml", ["missing.toml", "No such file"]),
        ("train", ["run", "preset"]),
        ("dance", ["'dance'", "train"]),
        ("train cartpole --actors 0", ["actors.count", "0", "1 or more"]),
        ("train cartpole --algorithm.unroll-length 0", ["algorithm.unroll_length", "1 or more"]),
        ("train cartpole --optimizer.learning-rate -1", ["optimizer.learning_rate", "above 0"]),
        ("train cartpole --learner.device tpu", ["learner.device", "'tpu'", "cpu"]),
        ("train cartpole --learner.device cuda:99", ["learner.device", "cuda:99", "cpu"]),
        ("train cartpole --environment.id Nope-v1", ["environment.id", "Nope-v1", "registered"]),
        ("train cartpole --environment.id Pendulum-v1", ["environment.id", "Discrete"]),
        ("train cartpole --out setup.cfg/below", ["out", "setup.cfg/below", "writable"]),
        ("train cartpole --load missing.safetensors", ["load", "missing.safetensors"]),
        ("evaluate missing.safetensors", ["missing.safetensors", "weights file"]),
        ("presets extra", ["presets", "extra"]),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(
    arguments: str,
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "setup.cfg").touch()
    monkeypatch.chdir(tmp_path)
    assert main(arguments.split()) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1, captured.err
    assert all(word in captured.err for word in words), captured.err


def test_an_unknown_flag_exits_2_without_a_traceback() -> None:
    done = run("train", "cartpole", "--enviroment.id", "x")
    assert done.returncode == 2
    assert "environment.id" in done.stderr
    assert "Traceback" not in done.stderr


def test_train_then_evaluate_then_load(tmp_path: Path) -> None:
    trained = run("train", "cartpole", *TINY, "--out", "first", "--json", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    result = json.loads(trained.stdout.splitlines()[-1])
    assert result.keys() >= {"reason", "env_steps", "updates", "wall_s", "startup_s", "eval_return", "weights"}
    assert result["reason"] == "env_steps"
    assert result["env_steps"] >= 400
    assert result["eval_return"] is None

    evaluated = run("evaluate", result["weights"], "--episodes", "5", "--seed", "3", "--json", cwd=tmp_path)
    scores = json.loads(evaluated.stdout.splitlines()[-1])
    assert scores["episodes"] == 5
    assert scores["min"] <= scores["mean"] <= scores["max"]
    again = run("evaluate", result["weights"], "--episodes", "5", "--seed", "3", "--json", cwd=tmp_path)
    assert json.loads(again.stdout.splitlines()[-1]) == scores

    loaded = run("train", "cartpole", *TINY, "--load", result["weights"], "--out", "second", cwd=tmp_path)
    assert loaded.returncode == 0, loaded.stderr
    assert "weights: " in loaded.stdout.splitlines()[-1]

    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(Path(result["weights"]).read_bytes()[:-100])
    for arguments in (["train", "cartpole", *TINY, "--load", str(cut)], ["evaluate", str(cut)]):
        refused = run(*arguments, cwd=tmp_path)
        assert refused.returncode == 2
        assert refused.stderr.count("\n") == 1
        assert "cut.safetensors" in refused.stderr

    other = run("train", "cartpole", *TINY, "--network.hidden-sizes", "8", "--load", result["weights"], cwd=tmp_path)
    assert other.returncode == 2
    assert "network.pi_logits.weight" in other.stderr
    assert "Traceback" not in other.stderr


def test_an_environment_may_be_a_module_in_the_folder_one_stands_in(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import gymnasium\ngymnasium.register('Mine-v0', 'gymnasium.envs.classic_control:AcrobotEnv', max_episode_steps=50)"
    )
    done = run("train", "cartpole", *TINY, "--environment.id", "mine:Mine-v0", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "runs/mine-v0-" in done.stdout


def test_config_toml_of_a_run_repeats_it(tmp_path: Path) -> None:
    first = run("train", "cartpole", *TINY, "--engine", "serial", "--out", "first", cwd=tmp_path)
    second = run("train", "first/config.toml", "--out", "second", cwd=tmp_path)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    files = [(tmp_path / name / "weights.safetensors").read_bytes() for name in ("first", "second")]
    assert files[0] == files[1]


def test_a_terminal_gets_a_live_table(tmp_path: Path) -> None:
    """On a pseudo-terminal the view redraws; the last lines are whole, and the cursor is shown again."""
    parent, child = pty.openpty()
    arguments = [
        "train",
        "cartpole",
        "--steps",
        "12000",
        "--evaluation.every",
        "100000",
        "--out",
        str(tmp_path / "run"),
    ]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen([*COMMAND, *arguments], stdout=child, stderr=child, stdin=child, env=environment)
    os.close(child)
    shown = b""
    try:
        while data := os.read(parent, 65536):
            shown += data
    except OSError:  # Linux says so when the last writer has left
        pass
    os.close(parent)
    assert process.wait(60) == 0
    text = shown.decode()
    assert "/12,000 env steps" in text
    assert "policy lag" in text
    assert "actor 1" in text
    assert "updates/s" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert text.rstrip().splitlines()[-1].startswith("weights: ")
