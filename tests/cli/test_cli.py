"""The command line as a user meets it: real subprocesses, their output and exit codes."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from apex_acer.cli import main
from apex_acer.cli.flags import described, flags_of
from apex_acer.cli.parsing import COMMON
from apex_acer.cli.training import parse_train
from apex_acer.cli.verbs import VERBS, module_of
from apex_acer.config import ALGORITHMS, ConfigError
from apex_acer.config.runfile import dump_run, load_run, parse_run, presets
from apex_acer.manager import manager
from apex_acer.manager.result import TrainResult
from apex_acer.storage.checkpoint import load, newest
from tests.conftest import config_error

COMMAND = [str(Path(sys.executable).with_name("apex-acer"))]
TINY = ["--actors", "1", "--actors.environments", "2", "--steps", "400", "--evaluation.every", "100000"]


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=90, cwd=cwd)


def test_flags_override_keys_and_short_forms_reach_theirs() -> None:
    flags = "--seed 7 --actors 3 --steps 123 --until 9.5 --engine serial --out a --load b --json"
    config, output = parse_train(["cartpole", *flags.split(), "--algorithm.unroll-length", "5"])
    assert (config.seed, config.actors.count, config.stop.env_steps, config.stop.at_return) == (7, 3, 123, 9.5)
    assert (config.engine, config.out, config.load, config.algorithm.unroll_length) == ("serial", "a", "b", 5)
    assert output.json
    assert config.environment.id == "CartPole-v1"


def test_what_an_environment_prints_is_not_beside_the_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "talks_here.py").write_text("def talk(environment):\n    print('hello')\n    return environment\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    wrapped = ["--environment.wrappers", "talks_here:talk", "--engine", "serial", "--out", str(tmp_path / "run")]
    assert main(["train", "cartpole", *TINY, *wrapped, "--json"]) == 0
    out, error = capsys.readouterr()
    assert json.loads(out)["reason"] == "env_steps"
    assert error.count("hello") > 2


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


def test_flags_are_those_of_the_algorithm_that_the_run_names() -> None:
    config, _ = parse_train(["pong-apex-dqn", "--algorithm.n-steps", "5", "--algorithm.no-double"])
    expected = load_run("pong-apex-dqn")
    assert config.algorithm == dataclasses.replace(expected.algorithm, n_steps=5, double=False)  # type: ignore[call-arg]
    assert dataclasses.replace(config, algorithm=expected.algorithm) == expected
    for run, flag in (("pong-apex-dqn", "--algorithm.ema-decay"), ("pong", "--algorithm.n-steps")):
        with pytest.raises(ConfigError, match=f"{flag}: unknown flag; it is one of another algorithm"):
            parse_train([run, flag, "1"])


@pytest.mark.parametrize("name", ["--algorithm.name apex_dqn", "--algorithm.name=apex_dqn"])
def test_a_flag_chooses_the_algorithm_and_with_it_the_flags(name: str) -> None:
    """As a run file that has the run as its `base`."""
    config, _ = parse_train(["cartpole", "--algorithm.n-steps", "5", *name.split()])
    assert config == load_run("cartpole", algorithm={"name": "apex_dqn", "n_steps": 5})
    said = config_error(lambda: parse_train(["cartpole", "--algorithm.name", "sarsa"]))
    assert said == f"algorithm.name: 'sarsa' is not allowed; give {', '.join(ALGORITHMS)} or module:class"


def test_what_the_chosen_algorithm_needs_may_come_by_flags() -> None:
    """cartpole has no LSTM, and 8 environments of 20 steps."""
    chosen = ["cartpole", "--algorithm.name", "r2d2"]
    config, _ = parse_train([*chosen, "--network.lstm", "32"])
    assert config == load_run("cartpole", algorithm={"name": "r2d2"}, network={"lstm": 32})
    assert config_error(lambda: parse_train(chosen)).startswith("network.lstm: 0 is not allowed; r2d2 needs an LSTM")


def test_presets_are_all_listed_uncut(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(presets())


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_names_every_verb(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert all(
        f"apex-acer {verb}" in out for verb in ("train", "resume", "evaluate", "play", "export", "sweep", "presets")
    )


@pytest.mark.parametrize("verb", ["train", "sweep", "tune"])
def test_help_fits_a_screen_and_help_all_has_every_flag(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([verb, "--help"], [verb, "cartpole", "-h"]):
        assert main(arguments) == 0
        short = capsys.readouterr().out
        assert len(short.splitlines()) <= 24
        assert all(flag in short for flag in COMMON)
    assert main([verb, "cartpole", "--help-all"]) == 0
    out = capsys.readouterr().out
    assert all(flag.split()[0] in out for flag in COMMON if flag != "--help-all")
    assert "(default: CartPole-v1)" in out


@pytest.mark.parametrize("verb", VERBS)
def test_every_line_of_help_fits_80_columns_and_every_flag_is_described(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for flag in ("--help", "--help-all"):
        assert main([verb, flag]) == 0
        assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    cls = getattr(module_of(verb), verb.title())
    assert all(meaning for _, meaning, _ in described(cls, flags_of(cls)))


def test_a_preset_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets", "show", "pong"]) == 0
    assert parse_run(capsys.readouterr().out, "shown") == load_run("pong")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("presets show pingpong", ["'pingpong'", "`apex-acer presets` lists all"]),
        ("presets pong", ["presets", "show NAME"]),
        ("trane cartpole", ["'trane'", "did you mean train?"]),
        ("--versio", ["'--versio'", "did you mean --version?"]),
        ("train nope", ["'nope'", "`apex-acer presets` lists all"]),
        ("train cartpol", ["did you mean 'cartpole' or "]),
        ("train missing.toml", ["missing.toml", "No such file"]),
        ("train", ["run: none is given; give a preset"]),
        ("train --steps 100", ["run: none is given; give a preset"]),
        ("train cartpole -steps 100", ["train: unexpected argument '-steps'; flags begin with two dashes: --steps"]),
        ("train cartpole steps=100", ["train: unexpected argument 'steps=100'; flags begin with two dashes: --steps"]),
        ("train mine.py", ["run: 'mine.py'", "give a preset", "--environment.id mine:Id"]),
        ("train cartpole --environment.id FrozenLake-v1 --network.torso conv", ["network.torso: 'conv'", "give mlp"]),
        ("train cartpole --environment.kwargs length=3", ['give one JSON object, such as {"length": 7}']),
        ("export missing.safetensors", ["export: no format is given; give --onnx"]),
        ("dance", ["'dance'", "train"]),
        ("train cartpole --actors -1", ["actors.count", "-1", "0 or more"]),
        ("train cartpole --algorithm.unroll-length 0", ["algorithm.unroll_length", "1 or more"]),
        ("train cartpole --optimizer.learning-rate -1", ["optimizer.learning_rate", "above 0"]),
        ("train cartpole --learner.device tpu", ["learner.device", "'tpu'", "cpu"]),
        ("train cartpole --engine serial --learner.device cuda:99", ["learner.device", "cuda:99", "cpu"]),
        ("train cartpole --environment.id Nope-v1", ["environment.id", "Nope-v1", "registered"]),
        ("train cartpole --environment.id ALE/Pnog-v5", ["did you mean 'ALE/Pong-v5'?"]),
        ("train cartpole --environment.id Pendulum-v1", ["algorithm.name: 'acer'", "has Box actions", "sac"]),
        ("train cartpole --out setup.cfg/below", ["out", "setup.cfg/below", "writable"]),
        ("train cartpole --load missing.safetensors", ["load", "missing.safetensors"]),
        ("evaluate missing.safetensors", ["missing.safetensors", "weights file"]),
        ("resume missing", ["resume", "missing", "no whole checkpoint"]),
        ("resume . --steps 100", ["resume", "no whole checkpoint"]),
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
    assert [path.name for path in tmp_path.iterdir()] == ["setup.cfg"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ("train cartpole --enviroment.id x", "--environment.id"),
        ("train cartpole --algorithm.replay-rato 3", "--algorithm.replay-ratio"),
        ("train cartpole --engine seria", "serial"),
        ("sweep cartpole --optimizer.schedule liner", "linear"),
        ("sweep cartpole --seds 3", "--seeds"),
        ("resume x --setps 3", "--steps"),
        ("evaluate x --polcy greedy", "--policy"),
        ("doctor --jso", "--json"),
        ("train cartpole --gamma 0.9", "did you mean --algorithm.gamma?"),
        ("train cartpole --total_timesteps 9", "did you mean --steps?"),
        ("train cartpole --lr 0.1", "did you mean --optimizer.learning-rate?"),
        ("train cartpole --n-envs 9", "did you mean --actors.environments?"),
        ("train cartpole --num_workers 9", "did you mean --actors?"),
        ("train cartpole --env Ant-v5", "did you mean --environment.id?"),
        ("train cartpole --device cuda", "did you mean --learner.device?"),
        ("train cartpole --zzzz 9", "--help-all lists all"),
        ("train cartpole --algorithm.name", "--algorithm.name: no value is given; give one"),
        ("train cartpole --steps 1.5", "--steps: 1.5 is not allowed; give int"),
        ("train cartpole --steps abc", "--steps: 'abc' is not allowed; give int"),
        ("resume x --steps abc", "--steps: 'abc' is not allowed; give int"),
        ("resume x --steps --json", "--steps: no value is given; give int"),
        ("train cartpole --json=yes", "--json: 'yes' is not allowed"),
        ("train cartpole --until never", "--until: 'never' is not allowed; give float or None"),
        ("train cartpole --network.hidden-sizes [64,64]", "give the values apart, as --network.hidden-sizes 64 64"),
        ("train cartpole --network.hidden-sizes 64 a", "--network.hidden-sizes: 'a' is not allowed; give int"),
    ],
)
def test_an_unknown_flag_or_value_exits_2_and_names_the_nearest(
    arguments: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.split()) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("apex-acer: --")
    assert word in error


def test_words_without_a_place_and_places_without_a_word_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, part in {"resume": "DIR is missing", "runs a b": "unexpected argument 'b'; --help"}.items():
        assert main(arguments.split()) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"apex-acer: {arguments.split()[0]}: {part}")
        assert error.count("\n") == 1


def test_whole_numbers_may_be_written_with_an_exponent_or_underscores() -> None:
    flags = "--steps 1e6 --replay.capacity=2_000_000 --network.hidden-sizes 6.4e1 64 --minutes 1e1"
    config, _ = parse_train(["cartpole", *flags.split()])
    assert (config.stop.env_steps, config.replay.capacity, config.network.hidden_sizes) == (10**6, 2 * 10**6, (64, 64))
    assert config.stop.minutes == 10.0
    assert type(config.stop.env_steps) is int


def say(capfd: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    """What the command prints on both streams when it is called here."""
    capfd.readouterr()
    assert main(arguments) == code
    return capfd.readouterr()


@pytest.mark.parametrize(("verb", "flags"), [("evaluate", ""), ("play", "--video game.gif")])
def test_a_seed_that_no_generator_takes_is_refused(
    verb: str, flags: str, stopped_run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = [verb, str(stopped_run / "weights.safetensors"), "--seed", "-5", *flags.split()]
    assert say(capfd, *arguments, code=2)[1] == "apex-acer: seed: -5 is not allowed; give 0 to 2147483647\n"


def test_a_run_s_folder_in_place_of_its_weights_is_told_the_file(
    stopped_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "run")
    for arguments in (["evaluate", str(stopped_run)], ["train", "cartpole", "--out", out, "--load", str(stopped_run)]):
        error = say(capfd, *arguments, code=2)[1]
        assert error.count("\n") == 1
        assert error.endswith(f"; give {stopped_run}/weights.safetensors\n")
    assert not Path(out).exists()


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has reached its total."""
    folder = tmp_path_factory.mktemp("stopped") / "first"
    assert main(["train", "cartpole", *TINY, "--engine", "serial", "--quiet", "--out", str(folder)]) == 0
    return folder


def test_train_then_evaluate_then_load(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = run("train", "cartpole", *TINY, "--out", "first", "--json", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    result = json.loads(trained.stdout.splitlines()[-1])
    assert result.keys() >= {
        "reason",
        "env_steps",
        "updates",
        "wall_s",
        "startup_s",
        "eval_return",
        "weights",
        "folder",
    }
    assert result["reason"] == "env_steps"
    assert result["env_steps"] >= 400
    assert result["eval_return"] is None

    monkeypatch.chdir(tmp_path)
    evaluate = ("evaluate", result["weights"], "--episodes", "5", "--seed", "3", "--json")
    scores = json.loads(say(capfd, *evaluate)[0].splitlines()[-1])
    assert scores["episodes"] == 5
    assert scores["min"] <= scores["mean"] <= scores["max"]
    assert json.loads(say(capfd, *evaluate)[0].splitlines()[-1]) == scores

    serial = ("train", "cartpole", *TINY, "--engine", "serial")
    out, _ = say(capfd, *serial, "--load", result["weights"], "--out", "second")
    assert "weights: " in out.splitlines()[-1]

    Path("cut.safetensors").write_bytes(Path(result["weights"]).read_bytes()[:-100])
    for arguments in ([*serial, "--load", "cut.safetensors"], ["evaluate", "cut.safetensors"]):
        _, error = say(capfd, *arguments, code=2)
        assert error.count("\n") == 1
        assert "cut.safetensors" in error

    _, error = say(capfd, *serial, "--network.hidden-sizes", "8", "--load", result["weights"], code=2)
    assert "network.hidden_sizes is [64, 64], this run's is [8]" in error
    assert not Path("third").exists()


def test_quiet_prints_nothing_but_what_was_asked_for(
    stopped_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train = ("train", "cartpole", *TINY, "--engine", "serial", "--quiet")
    assert say(capfd, *train, "--out", "run") == ("", "")
    out, error = say(capfd, "resume", "run", "--steps", "800", "--quiet", "--json")
    assert error == ""
    (line,) = out.splitlines()
    assert json.loads(line)["env_steps"] >= 800
    out, error = say(capfd, *train, "--environment.id", "Nope-v1", code=2)
    assert (out, error.count("\n")) == ("", 1)


def test_a_run_whose_every_update_was_skipped_fails_aloud(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = TrainResult("env_steps", 400, 0, 2.0, 1.0, None, "weights.safetensors", "run", skipped_updates=83)
    monkeypatch.setattr(manager, "manage", lambda run: result)
    out, error = say(capfd, "train", "cartpole", *TINY, "--quiet", "--out", str(tmp_path / "run"), code=1)
    assert (out, error.count("\n")) == ("", 1)
    assert error.startswith("apex-acer: nothing was learned: all 83 updates were skipped")


DEBUGGED = (
    "replay holds up to",  # the learner's
    "started actor_0, incarnation 0",  # the manager's
    "weights of version ",  # an actor's, for those who look closely
)


def test_the_log_level_says_what_is_logged(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    say(capfd, "train", "cartpole", *TINY, "--engine", "serial", "--quiet", "--out", "run", "--log-level", "error")
    assert Path("run/log.txt").read_text() == ""
    (listed,) = json.loads(say(capfd, "runs", ".", "--json")[0])
    assert listed["state"] == "ended"
    say(capfd, "resume", "run", "--steps", "800", "--quiet", "--log-level", "debug")
    added = Path("run/log.txt").read_text()
    assert all(line in added for line in DEBUGGED)
    assert load_run("run/config.toml").logging.level == "debug"


def test_the_log_level_is_that_of_every_process(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = ("cartpole-apex-dqn", *TINY, "--quiet", "--out", str(tmp_path / "run"))
    say(capfd, "train", *run, "--log-level", "debug")
    log = (tmp_path / "run" / "log.txt").read_text()
    assert all(line in log for line in DEBUGGED)


def test_a_run_is_resumed_with_the_settings_it_had(
    stopped_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(stopped_run, tmp_path / "first")
    monkeypatch.chdir(tmp_path)
    result = json.loads(say(capfd, "resume", "first", "--steps", "700", "--json")[0].splitlines()[-1])
    assert result["reason"] == "env_steps"
    assert 700 <= result["env_steps"] < 1000
    assert Path(result["weights"]) == tmp_path / "first" / "weights.safetensors"
    before, after = (load_run(str(folder / "config.toml")) for folder in (stopped_run, tmp_path / "first"))
    assert after == dataclasses.replace(before, stop=dataclasses.replace(before.stop, env_steps=700))
    assert after.engine == "serial"


def test_resume_takes_new_ends(stopped_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "first")
    shutil.copytree(stopped_run, folder)
    path = newest(stopped_run)
    assert path is not None
    minutes = round(load(path).state["wall_s"] / 60 + 0.01, 4)
    out, _ = say(capfd, "resume", folder, *f"--steps 1000000 --minutes {minutes} --until 499".split())
    assert out.splitlines()[-2].startswith("the time budget is used up: ")
    stop = load_run(f"{folder}/config.toml").stop
    assert (stop.env_steps, stop.minutes, stop.at_return) == (1000000, minutes, 499.0)
    _, error = say(capfd, "resume", folder, code=2)
    assert error.count("\n") == 1
    assert f"stop.minutes: {minutes:g} is reached" in error


def test_a_target_and_a_limit_can_be_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    config, _ = parse_train(["cartpole", "--until", "None"])
    assert config == load_run("cartpole", stop={"at_return": None})
    asked = []
    monkeypatch.setattr(
        "apex_acer.manager.preparation.prepare_resume", lambda folder, stop, *rest, **more: asked.append(stop)
    )
    monkeypatch.setattr("apex_acer.cli.training.finish", lambda run, output: 0)
    for flags in ("", "--until None --minutes None", "--until 3 --minutes 2 --steps 9"):
        assert main(["resume", "run", *flags.split()]) == 0
    assert asked == [{}, {"at_return": None, "minutes": None}, {"env_steps": 9, "at_return": 3.0, "minutes": 2.0}]


def same(folder: Path) -> None:
    """The total that it was to make is reached."""


def damaged_files(folder: Path) -> None:
    (path,) = folder.glob("checkpoint/*/tensors.safetensors")
    path.write_bytes(path.read_bytes()[:-1] + b"x")


def cut_files(folder: Path) -> None:
    (path,) = folder.glob("checkpoint/*/tensors.safetensors")
    path.write_bytes(path.read_bytes()[:-1])


def another_network(folder: Path) -> None:
    config = load_run(str(folder / "config.toml"))
    network = dataclasses.replace(config.network, hidden_sizes=(8,))
    (folder / "config.toml").write_text(dump_run(dataclasses.replace(config, network=network)))


def wrong_run_file(folder: Path) -> None:
    (folder / "config.toml").write_text("stop = 3")


REFUSALS: dict[Callable[[Path], None], list[str]] = {
    same: ["stop.env_steps: 400 is reached", "--steps"],
    damaged_files: ["checkpoint", "tensors.safetensors: damaged"],
    cut_files: ["no whole checkpoint"],
    another_network: ["checkpoint", "tensor network.", "this network has"],
    wrong_run_file: ["config.toml", "stop"],
}


@pytest.mark.parametrize(("spoil", "words"), REFUSALS.items(), ids=[spoil.__name__ for spoil in REFUSALS])
def test_what_cannot_be_resumed_gets_one_line_and_exit_code_2(
    stopped_run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    spoil: Callable[[Path], None],
    words: list[str],
) -> None:
    folder = tmp_path / "first"
    shutil.copytree(stopped_run, folder)
    spoil(folder)
    assert main(["resume", str(folder), *([] if spoil is same else ["--steps", "800"])]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1, captured.err
    assert str(folder) in captured.err or spoil is same
    assert all(word in captured.err for word in words), captured.err


def test_a_run_that_another_program_goes_on_with_is_refused_and_left_alone(
    stopped_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "first"
    shutil.copytree(stopped_run, folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with (folder / "log.txt").open("a") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        assert main(["resume", str(folder), "--steps", "800"]) == 2
    captured = capsys.readouterr()
    assert captured.err == f"apex-acer: out: '{folder}' is in use; another program trains there\n"
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_config_toml_of_a_run_repeats_it(stopped_run: Path, tmp_path: Path) -> None:
    assert main(["train", str(stopped_run / "config.toml"), "--quiet", "--out", str(tmp_path / "second")]) == 0
    files = [(folder / "weights.safetensors").read_bytes() for folder in (stopped_run, tmp_path / "second")]
    assert files[0] == files[1]
