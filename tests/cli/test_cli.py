"""The command line as a user meets it: what it prints, its exit codes, and what it leaves in files."""

from __future__ import annotations

import dataclasses
import fcntl
import functools
import io
import json
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest

from apex_acer.cli import main
from apex_acer.cli.flags import described, flags_of
from apex_acer.cli.parsing import COMMON
from apex_acer.cli.training import parse_train
from apex_acer.cli.verbs import VERBS, module_of
from apex_acer.config import ALGORITHMS
from apex_acer.config.runfile import load_run, parse_run, presets
from apex_acer.manager import manager
from apex_acer.manager.result import TrainResult
from apex_acer.storage.checkpoint import load, newest
from apex_acer.tools.doctor import run as doctor_run
from tests.conftest import Refused, assert_refused, config_error

TINY = ["--actors", "1", "--actors.environments", "2", "--steps", "400", "--evaluation.every", "100000"]
SERIAL = ["train", "cartpole", *TINY, "--engine", "serial"]


def say(capfd: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    """What the command prints on both streams when it is called here."""
    capfd.readouterr()
    assert main(arguments) == code
    return capfd.readouterr()


# ── flags ──


def test_flags_override_keys_and_short_forms_reach_theirs() -> None:
    flags = (
        "--seed 7 --actors 3 --steps 1.5e3 --until 9.5 --engine serial --out a --load b --json --replay.capacity=2_000"
    )
    config, output = parse_train(["cartpole", *flags.split(), "--network.hidden-sizes", "6.4e1", "64"])
    assert (config.seed, config.actors.count, config.stop.env_steps, config.stop.at_return) == (7, 3, 1500, 9.5)
    assert (config.engine, config.out, config.load, config.network.hidden_sizes) == ("serial", "a", "b", (64, 64))
    assert config.replay.capacity == 2000
    assert type(config.stop.env_steps) is int
    assert output.json
    assert config.environment.id == "CartPole-v1"
    config, _ = parse_train(["cartpole", "--until", "None"])
    assert config == load_run("cartpole", stop={"at_return": None})


def test_flags_are_those_of_the_algorithm_that_the_run_or_a_flag_names() -> None:
    config, _ = parse_train(["pong-apex-dqn", "--algorithm.n-steps", "5", "--algorithm.no-double"])
    assert config == load_run("pong-apex-dqn", algorithm={"n_steps": 5, "double": False})
    for name in ("--algorithm.name apex_dqn", "--algorithm.name=apex_dqn"):
        config, _ = parse_train(["cartpole", "--algorithm.n-steps", "5", *name.split()])
        assert config == load_run("cartpole", algorithm={"name": "apex_dqn", "n_steps": 5})
    for run, flag in (("pong-apex-dqn", "--algorithm.ema-decay"), ("pong", "--algorithm.n-steps")):
        said = config_error(functools.partial(parse_train, [run, flag, "1"]))
        assert said.startswith(f"{flag}: unknown flag; it is one of another algorithm")
    said = config_error(lambda: parse_train(["cartpole", "--algorithm.name", "sarsa"]))
    assert said == f"algorithm.name: 'sarsa' is not allowed; give {', '.join(ALGORITHMS)} or module:class"
    # what the chosen algorithm needs may come by flags
    chosen = ["cartpole", "--algorithm.name", "r2d2"]
    config, _ = parse_train([*chosen, "--network.lstm", "32"])
    assert config == load_run("cartpole", algorithm={"name": "r2d2"}, network={"lstm": 32})
    assert config_error(lambda: parse_train(chosen)).startswith("network.lstm: 0 is not allowed; r2d2 needs an LSTM")


# ── help ──


@pytest.mark.parametrize("verb", VERBS)
def test_help_fits_80_columns_and_a_screen_and_describes_every_flag(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cls = getattr(module_of(verb), verb.title())
    flags = described(cls, flags_of(cls))
    assert all(meaning for _, meaning, _ in flags)
    for command in (["--help"], ["-h"], ["--help-all"]):
        assert main([verb, *command]) == 0
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= 80
        if verb in ("train", "sweep", "tune"):
            assert all(flag.split()[0] in out for flag in COMMON if flag != "--help-all")
            assert (len(out.splitlines()) <= 24) == (command != ["--help-all"])
        else:
            assert all(name.split(",")[0].split()[0] in out for name, *_ in flags)


def test_help_names_every_verb_and_presets_are_listed_and_shown_whole(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--help"]):
        assert main(arguments) == 0
        out = capsys.readouterr().out
        assert all(f"apex-acer {verb}" in out for verb in VERBS)
    assert main(["presets"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(presets())
    assert main(["presets", "show", "pong"]) == 0
    assert parse_run(capsys.readouterr().out, "shown") == load_run("pong")
    assert main(["train", "cartpole", "--help-all"]) == 0
    assert "(default: CartPole-v1)" in capsys.readouterr().out


# ── bad input ──

BAD_INPUT = {
    "presets show pingpong": "'pingpong' … `apex-acer presets` lists all",
    "presets pong": "presets … show NAME",
    "trane cartpole": "'trane' … did you mean train?",
    "train cartpol": "did you mean 'cartpole' or ",
    "train missing.toml": "missing.toml … No such file",
    "train": "run: none is given; give a preset",
    "train cartpole -steps 100": "train: unexpected argument '-steps'; flags begin with two dashes: --steps",
    "train mine.py": "run: 'mine.py' … give a preset … --environment.id mine:Id",
    "train cartpole --environment.kwargs length=3": 'give one JSON object, such as {"length": 7}',
    "train cartpole --actors -1": "actors.count … -1 … 0 or more",
    "train cartpole --learner.device tpu": "learner.device … 'tpu' … cpu",
    "train cartpole --engine serial --learner.device cuda:99": "learner.device … cuda:99 … cpu",
    "train cartpole --environment.id Nope-v1": "environment.id … Nope-v1 … registered",
    "train cartpole --environment.id Pendulum-v1": "algorithm.name: 'acer' … has Box actions … sac",
    "train cartpole --out setup.cfg/below": "out … setup.cfg/below … writable",
    "train cartpole --load missing.safetensors": "load … missing.safetensors",
    "evaluate missing.safetensors": "missing.safetensors … weights file",
    "resume": "resume: DIR is missing",
    "resume . --steps 100": "resume … no whole checkpoint",
    "runs a b": "runs: unexpected argument 'b'; --help",
    # flags, of which the nearest is named
    "train cartpole --enviroment.id x": "apex-acer: -- … --environment.id",
    "sweep cartpole --optimizer.schedule liner": "apex-acer: -- … linear",
    "train cartpole --gamma 0.9": "did you mean --algorithm.gamma?",
    "train cartpole --lr 0.1": "did you mean --optimizer.learning-rate?",
    "train cartpole --zzzz 9": "--help-all lists all",
    "train cartpole --algorithm.name": "--algorithm.name: no value is given; give one",
    "train cartpole --steps 1.5": "--steps: 1.5 is not allowed; give int",
    "resume x --steps --json": "--steps: no value is given; give int",
    "train cartpole --json=yes": "--json: 'yes' is not allowed; it takes no value",
    "train pong --replay.compress false": "'false' is not allowed; it takes no value; --replay.no-compress is its",
    "train pong --replay.no-compress=1": "'1' is not allowed; it takes no value; --replay.compress is its opposite",
    "train pong --no-replay.compress": "did you mean --replay.no-compress?",
    "train cartpole --until never": "--until: 'never' is not allowed; give float or None",
    "train cartpole --network.hidden-sizes [64,64]": "give the values apart, as --network.hidden-sizes 64 64",
}


def test_bad_input_gets_one_line_and_leaves_no_file(
    tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "setup.cfg").touch()
    monkeypatch.chdir(tmp_path)
    assert_refused(refused, BAD_INPUT)
    assert [path.name for path in tmp_path.iterdir()] == ["setup.cfg"]


def test_weights_that_cannot_be_used_are_one_line(finished_run: Path, tmp_path: Path, refused: Refused) -> None:
    weights, cut, out = finished_run / "weights.safetensors", tmp_path / "cut.safetensors", tmp_path / "run"
    cut.write_bytes(weights.read_bytes()[:-100])
    train = f"{' '.join(SERIAL)} --out {out}"
    table = {
        f"evaluate {cut}": str(cut),
        f"{train} --load {cut}": str(cut),
        f"evaluate {finished_run}": f"; give {weights}\n",
        f"{train} --load {finished_run}": f"; give {weights}\n",
        f"{train} --network.hidden-sizes 8 --load {weights}": "network.hidden_sizes is [16], this run's is [8]",
        f"evaluate {weights} --seed -5": "seed: -5 is not allowed; give 0 to 2147483647\n",
        f"play {weights} --seed -5 --video game.gif": "seed: -5 is not allowed; give 0 to 2147483647\n",
    }
    assert_refused(refused, table)
    assert not out.exists()


# ── training and evaluating ──


@pytest.fixture
def copied(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of a run that has reached its total."""
    return Path(shutil.copytree(finished_run, tmp_path / "first"))


DEBUGGED = (
    "replay holds up to",  # the learner's
    "started actor_0, incarnation 0",  # the manager's
    "weights of version ",  # an actor's, for those who look closely
)


def test_train_in_processes_then_evaluate(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = ("cartpole", *TINY, "--json", "--out", str(tmp_path / "run"), "--log-level", "debug")
    result = json.loads(say(capfd, "train", *run)[0].splitlines()[-1])
    assert result.keys() >= {"updates", "wall_s", "startup_s", "folder"}
    assert (result["reason"], result["eval_return"]) == ("env_steps", None)
    assert result["env_steps"] >= 400
    assert all(line in (tmp_path / "run/log.txt").read_text() for line in DEBUGGED)
    evaluate = ("evaluate", result["weights"], "--episodes", "5", "--seed", "3", "--json")
    scores = json.loads(say(capfd, *evaluate)[0].splitlines()[-1])
    assert scores["episodes"] == 5
    assert scores["min"] <= scores["mean"] <= scores["max"]
    assert json.loads(say(capfd, *evaluate)[0].splitlines()[-1]) == scores


def test_a_run_goes_on_from_weights_and_config_toml_repeats_it(
    finished_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    weights, again = finished_run / "weights.safetensors", tmp_path / "second"
    run = ["train", str(finished_run / "config.toml"), "--quiet", "--out"]
    assert say(capfd, *run, str(again)) == ("", "")
    assert weights.read_bytes() == (again / "weights.safetensors").read_bytes()
    assert say(capfd, *run, str(tmp_path / "third"), "--load", str(weights)) == ("", "")
    assert weights.read_bytes() != (tmp_path / "third/weights.safetensors").read_bytes()


def test_what_an_environment_prints_is_not_beside_the_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "talks_here.py").write_text("def talk(environment):\n    print('hello')\n    return environment\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    wrapped = ["--environment.wrappers", "talks_here:talk", "--out", str(tmp_path / "run")]
    assert main([*SERIAL, *wrapped, "--json", "--log-level", "error"]) == 0
    out, error = capsys.readouterr()
    assert json.loads(out)["reason"] == "env_steps"
    assert error.count("hello") > 2
    assert (tmp_path / "run/log.txt").read_text() == ""
    assert main(["runs", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "ended"  # also without a log


@pytest.mark.parametrize("left", [SystemExit(0), KeyboardInterrupt(signal.SIGTERM)])
def test_what_an_environment_exits_with_is_not_the_exit_code(
    left: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def leave(arguments: list[str]) -> int:
        raise left

    monkeypatch.setattr("apex_acer.cli.policies.evaluate", leave)
    code, said = (1, "SystemExit: 0\n") if isinstance(left, SystemExit) else (143, "apex-acer: interrupted\n")
    assert main(["evaluate", "weights"]) == code
    assert capsys.readouterr().err.endswith(said)


def test_a_run_whose_every_update_was_skipped_fails_aloud(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = TrainResult("env_steps", 400, 0, 2.0, 1.0, None, "weights.safetensors", "run", skipped_updates=83)
    monkeypatch.setattr(manager, "manage", lambda run: result)
    out, error = say(capfd, "train", "cartpole", *TINY, "--quiet", "--out", str(tmp_path / "run"), code=1)
    assert (out, error.count("\n")) == ("", 1)
    assert error.startswith("apex-acer: nothing was learned: all 83 updates were skipped")


# ── resuming ──


def test_a_run_is_resumed_with_the_settings_it_had(
    finished_run: Path, copied: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out, error = say(capfd, "resume", str(copied), "--steps", "1300", "--quiet", "--json", "--log-level", "debug")
    (line,) = out.splitlines()
    result = json.loads(line)
    assert (error, result["reason"]) == ("", "env_steps")
    assert 1300 <= result["env_steps"] < 1600
    assert Path(result["weights"]) == copied / "weights.safetensors"
    assert all(line in (copied / "log.txt").read_text() for line in DEBUGGED)
    before, after = (load_run(str(folder / "config.toml")) for folder in (finished_run, copied))
    stop, logging = dataclasses.replace(before.stop, env_steps=1300), dataclasses.replace(before.logging, level="debug")
    assert after == dataclasses.replace(before, stop=stop, logging=logging)


def test_resume_takes_new_ends_and_drops_old_ones(
    copied: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = newest(copied)
    assert path is not None
    minutes = round(load(path).state["wall_s"] / 60 + 0.01, 4)
    out, _ = say(capfd, "resume", str(copied), *f"--steps 1000000 --minutes {minutes} --until 499".split())
    assert out.splitlines()[-2].startswith("the time budget is used up: ")
    stop = load_run(f"{copied}/config.toml").stop
    assert (stop.env_steps, stop.minutes, stop.at_return) == (1000000, minutes, 499.0)
    assert f"stop.minutes: {minutes:g} is reached" in say(capfd, "resume", str(copied), code=2)[1]
    asked = []
    monkeypatch.setattr(
        "apex_acer.manager.preparation.prepare_resume", lambda folder, stop, *rest, **more: asked.append(stop)
    )
    monkeypatch.setattr("apex_acer.cli.training.finish", lambda run, output: 0)
    for flags in ("", "--until None --minutes None", "--until 3 --minutes 2 --steps 9"):
        assert main(["resume", "run", *flags.split()]) == 0
    assert asked == [{}, {"at_return": None, "minutes": None}, {"env_steps": 9, "at_return": 3.0, "minutes": 2.0}]


def test_what_is_reached_or_in_use_is_refused_in_one_line_and_left_alone(copied: Path, refused: Refused) -> None:
    assert_refused(refused, {f"resume {copied}": "stop.env_steps: 1000 is reached … --steps"})
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    with (copied / "log.txt").open("a") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        line = refused("resume", str(copied), "--steps", "1300")
    assert line == f"apex-acer: out: '{copied}' is in use; another program trains there\n"
    assert {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()} == before


# ── what a terminal shows while a command works ──


class Screen(io.StringIO):
    """A terminal's line."""

    terminal = True

    def isatty(self) -> bool:
        return self.terminal

    def texts(self) -> list[str]:
        """What it was made to show, one after the other; it shows nothing in the end."""
        shown = self.getvalue()
        assert not shown or shown[-1] in "\r\n"
        self.seek(0)
        self.truncate()
        return [text for text in re.split(r"\r *\r", shown) if text]


def test_a_terminal_is_told_what_a_command_is_doing(
    finished_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screen, rates = Screen(), {"environment": 1e5, "acting": 1e4, "update": 1e4}
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(doctor_run, "measure", lambda *args, **named: rates)
    doctor, evaluate = ["doctor", str(finished_run)], ["evaluate", f"{finished_run}/weights.safetensors"]
    assert main(doctor) == main([*evaluate, "--episodes", "2"]) == 0
    working = ["loading torch ...", "making environments ...", "measuring the speed, half a minute ..."]
    assert screen.texts() == [*working, "playing 2 episodes ..."]
    assert re.search(r"; 1,000 steps in 0 s$", capsys.readouterr().out, re.MULTILINE)
    assert main(["doctor", "absent"]) == 2
    loading, error = screen.texts()
    assert loading == "loading torch ..."
    assert error.startswith("apex-acer: run: 'absent' is neither a preset nor a file; ")
    # with --json, or without a terminal, nothing is said
    assert main([*evaluate, "--episodes", "1", "--json"]) == 0
    screen.terminal = False
    assert main(doctor) == 0
    assert not screen.texts()
