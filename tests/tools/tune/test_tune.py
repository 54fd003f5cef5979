"""Studies: what may vary, which trials are ended, what is kept and gone on with; with made-up runs and with a real one."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import optuna
import pytest
from PIL import Image

from apex_acer.cli import main
from apex_acer.config.runfile import dump_run, load_run
from apex_acer.tools.sweep import training
from apex_acer.tools.sweep.commands import Commands
from apex_acer.tools.tune import tune as tune_module
from apex_acer.tools.tune.plan import Range, make_space, settings, start
from apex_acer.tools.tune.study import JOURNAL, is_in_lowest_quarter
from apex_acer.tools.tune.tune import score
from tests.conftest import Refused, assert_refused
from tests.programs import signal_when
from tests.runs import tiny_run

# stands in for `python -m apex_acer`: the nearer gamma is to 0.7, the faster the run learns, and above 0.9 it fails
MADE_UP = """
import json, os, pathlib, signal, sys, time, tomllib
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs, and so the tests', may ignore it
verb, path, _, out, *flags = sys.argv[1:]
run, folder = tomllib.loads(pathlib.Path(path).read_text()), pathlib.Path(out)
gamma, seed = run["algorithm"]["gamma"], run["seed"]
open("notes", "a").write(json.dumps([path, gamma]) + "\\n")
folder.mkdir()
if gamma > 0.9:
    sys.exit("ZeroDivisionError: in env.py")
if pathlib.Path("hanging").exists() and seed == 1:
    pathlib.Path("hangs").touch()
    time.sleep(60)
steps = round(100 + 900 * abs(gamma - 0.7) + seed)
bad = pathlib.Path("bad").exists() and gamma == 0.1 and len(open("notes").readlines()) > 10
returns = {at: 0.0 if bad else min(10.0, 10.0 * at / steps) for at in range(50, min(steps, 1000) + 50, 50)}
lines = [
    {"source": "evaluator", "env_steps": at, "eval_env_steps": at, "eval_return": returns[at], "wall_s": 1.0}
    for at in returns
]
(folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\\n" for line in lines))
time.sleep(60 if bad else 0)
result = {"reason": "at_return", "env_steps": steps, "updates": 1, "wall_s": 0.5, "startup_s": 0.1}
print(json.dumps(result | {"eval_return": 10.0, "weights": os.path.abspath(folder / "weights.safetensors")}))
"""
VARY = "--vary algorithm.gamma=0.1:0.9"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the test stands, with a run file `tiny.toml` and made-up commands."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training, "PROGRAM", (sys.executable, "-S", "made_up.py"))
    Path("made_up.py").write_text(MADE_UP)
    config = tiny_run(algorithm__gamma=0.2, evaluation__every=50, stop__env_steps=1000, stop__at_return=10.0)
    Path("tiny.toml").write_text(dump_run(config))
    return tmp_path


TUNE = ["tune", "tiny.toml", "--out", "out", "--jobs", "1"]


def tune(flags: str) -> int:
    return main([*TUNE, *flags.split()])


def results() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path("out/results.json").read_text())
    return found


def notes() -> list[tuple[str, float]]:
    """The run file and gamma of each run so far."""
    return [tuple(json.loads(line)) for line in Path("notes").read_text().splitlines()]


# ── what may vary ──


def test_flags_are_ranges_and_choices() -> None:
    base = tiny_run(algorithm__gamma=0.9)
    rate, sizes = "optimizer.learning_rate", "network.hidden_sizes"
    vary = ["optimizer.learning-rate=1e-5:1:log", "learner.batch_size=2:8", "algorithm.gamma=0.5,0.9"]
    vary += ["network.hidden_sizes=8+8,16", "optimizer.name:optimizer.eps=rmsprop:1e-5,adam:1e-8"]
    space = make_space(base, vary)
    assert (space[rate], space["learner.batch_size"]) == (Range(1e-5, 1.0, log=True), Range(2, 8, log=False))
    assert space[sizes] == {"8+8": {sizes: (8, 8)}, "16": {sizes: (16,)}}
    first = start(space, base)
    known = {rate: base.optimizer.learning_rate, "learner.batch_size": 4}
    choices = {"algorithm.gamma": "0.9", sizes: "16", "optimizer.name:optimizer.eps": "rmsprop:1e-5"}
    assert first == known | choices
    chosen = {"algorithm.gamma": 0.9, sizes: (8, 8), "optimizer.name": "rmsprop", "optimizer.eps": 1e-5}
    assert settings(space, first | {sizes: "8+8"}) == known | chosen
    assert start(make_space(base, ["algorithm.gamma=0.1:0.2"]), base) is None


def test_bad_input_gets_one_line_before_anything_starts(folder: Path, refused: Refused) -> None:
    Path("other").mkdir()
    Path("other/file").touch()
    table = {
        "": "vary … KEY=LOW:HIGH",
        "--vary algorithm.gamma=0:1:lin": "'algorithm.gamma=0:1:lin' … KEY=LOW:HIGH:log",
        "--vary algorithm.gamma=0:1:log": "above 0",
        "--vary algorithm.gamma=0.9:0.5": "the lower end first",
        "--vary algorithm.gamma=0.5:inf": "algorithm.gamma … finite numbers",
        "--vary algorithm.gamma=0.5:2": "algorithm.gamma … 2.0 … 0 to 1",
        "--vary algorithm.gamma=0.5,0.5": "each value once",
        "--vary learner.batch_size=1.5:3": "learner.batch_size … int",
        "--vary stop.minutes=1:2": "'stop.minutes' … compared by it",
        f"{VARY} --trials 0": "trials … 1 or more",
        f"{VARY} --until None --evaluation.every 0": "evaluation.every … 1 or more",
        f"{VARY} --steps 99 --evaluation.every 100": "evaluation.every: 100 … at most stop.env_steps (99)",
        f"{VARY} --out other": "out … 'other' … not empty",
    }
    assert_refused(refused, {f"{' '.join(TUNE)} {flags}": parts for flags, parts in table.items()})
    assert not Path("out").exists()


# ── what is compared ──


def test_the_score_is_the_steps_to_the_target_or_the_last_evaluation() -> None:
    reached = {"reason": "at_return", "env_steps": 300, "eval_return": 9.0}
    missed = {"reason": "env_steps", "env_steps": 1000, "eval_return": 5.0}
    with_target = tiny_run(evaluation__every=50, stop__env_steps=1000, stop__at_return=8.0)
    assert score(with_target, [reached, missed]) == (300 + 2000) / 2
    assert score(tiny_run(), [reached, missed]) == 7.0
    assert score(tiny_run(), [reached, {**missed, "eval_return": None}]) is None


Direction = Literal["minimize", "maximize"]
Values = dict[int, float]


def is_bad(others: list[Values], own: Values, direction: Direction = "maximize", ended: bool = True) -> bool:
    """Whether a trial ends at its last step; a seed has 100 steps."""
    study = optuna.create_study(direction=direction)
    state = optuna.trial.TrialState.COMPLETE if ended else optuna.trial.TrialState.PRUNED
    value = 0.0 if ended else None
    for steps in others:
        study.add_trial(optuna.trial.create_trial(state=state, value=value, intermediate_values=dict(steps)))
    trial = study.ask()
    for step, value in own.items():
        trial.report(value, step)
    return is_in_lowest_quarter(study, study.trials[-1], max(own), 100)


def test_a_trial_in_the_lowest_quarter_of_those_that_came_as_far_is_ended() -> None:
    others = [{40: float(value), 150: 10.0 + value} for value in range(8)]
    assert is_bad(others, {40: 0.5})
    assert not is_bad(others, {40: 3.0})
    assert not is_bad(others[:4], {40: -1.0})  # too few
    assert not is_bad(others, {9: -1.0})  # too early
    assert is_bad(others, {60: 0.5})  # the others keep their value until the next report
    assert not is_bad(others, {40: 0.5, 150: 14.0})  # a bad first seed is made up for
    assert not is_bad(others, {120: -1.0})  # of this seed the others have nothing yet
    assert is_bad([{40: -float(value)} for value in range(8)], {40: -0.5}, "minimize")
    broken_off = [{40: float(value)} for value in range(8)]
    assert not is_bad(broken_off, {60: -1.0}, ended=False)  # no other trial came as far


# ── made-up runs ──


def test_a_study_finds_a_better_setting_and_writes_it_down(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In parts it is the same as in one piece."""
    assert tune(f"{VARY} --trials 3 --seeds 2") == 0
    assert tune(f"{VARY} --trials 12 --seeds 2") == 0
    data = results()
    trials = data["trials"]
    assert [trial["number"] for trial in trials] == list(range(12))
    assert len(set(notes())) == len(notes()), "no seed is trained twice"
    assert trials[0]["overrides"] == {"algorithm.gamma": 0.2}, "the run itself comes first"
    assert trials[0]["score"] == 100 + 900 * 0.5 + 0.5
    assert notes()[:2] == [("out/trials/0000/seed_0.toml", 0.2), ("out/trials/0000/seed_1.toml", 0.2)]
    best = min(trials, key=lambda trial: trial["score"] or 9999)
    assert data["best"] == best["number"]
    assert best["score"] < 250
    config = load_run("out/best.toml")
    assert config == load_run("tiny.toml", algorithm={"gamma": best["overrides"]["algorithm.gamma"]})
    assert f"trial {best['number']}" in Path("out/best.toml").read_text().splitlines()[0]
    assert set(data["variants"][f"trial {best['number']}"]["runs"]) == {"0", "1"}
    assert data["importance"] == {"algorithm.gamma": 1.0}
    out = capsys.readouterr().out
    assert "trial 0: 550 env steps: gamma=0.2" in out
    assert "apex-acer sweep out/best.toml --seed 2" in out
    assert str(folder) not in Path("out/results.json").read_text()
    with Image.open("out/curves.png") as image:
        assert image.width > image.height > 300
    assert tune(f"{VARY} --trials 12 --seeds 2 --out whole") == 0
    assert json.loads(Path("whole/results.json").read_text())["trials"] == trials


def test_another_study_in_the_folder_is_refused(folder: Path, refused: Refused) -> None:
    assert tune(f"{VARY} --trials 1 --seeds 1") == 0
    before = Path("out/study.journal").read_bytes()
    for flags in (f"{VARY} --seeds 2", "--vary algorithm.gamma=0.1:0.8 --seeds 1", f"{VARY} --seeds 1 --actors 1"):
        assert "holds another study" in refused(*TUNE, *flags.split())
    assert Path("out/study.journal").read_bytes() == before
    Path("out/study.journal").write_text("{}\n{")
    assert "is damaged" in refused(*TUNE, *VARY.split())


def test_a_setting_whose_run_fails_is_a_bad_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune("--vary algorithm.gamma=0.5,0.95 --trials 6 --seeds 1") == 0
    states = {trial["overrides"]["algorithm.gamma"]: trial["state"] for trial in results()["trials"]}
    assert states == {0.5: "complete", 0.95: "failed"}
    assert "failed: exit code 1 | ZeroDivisionError: in env.py" in capsys.readouterr().out
    assert tune("--vary algorithm.gamma=0.95,0.96 --trials 1 --seeds 1 --out none") == 1


def test_a_bad_trial_is_ended_in_its_first_seed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its run is interrupted, even if it was quick to evaluate, and would otherwise wait for a minute."""
    start_command = Commands.start

    def start_slowly(*args: Any, **kwargs: Any) -> None:
        start_command(*args, **kwargs)
        time.sleep(0.2 * (len(notes()) > 10))  # as long as a run needs for its evaluations here

    Path("notes").touch()
    monkeypatch.setattr(Commands, "start", start_slowly)
    Path("bad").touch()
    started = time.monotonic()
    assert tune("--vary algorithm.gamma=0.1,0.7 --trials 8 --seeds 2") == 0
    assert time.monotonic() - started < 50
    states = [trial["state"] for trial in results()["trials"]]
    assert "pruned" in states
    runs = [path for path, _ in notes()]
    assert len(runs) == 16 - states.count("pruned")
    assert not [path for path in runs if any(f"{n:04d}/seed_1" in path for n in range(8) if states[n] == "pruned")]


def test_ctrl_c_leaves_a_trial_that_the_same_command_finishes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("hanging").touch()
    signal_when(Path("hangs").exists, signal.SIGINT)
    assert tune(f"{VARY} --trials 2 --seeds 3") == 130
    assert "SIGINT: the same command with --out out continues the study" in capsys.readouterr().err
    assert [trial["state"] for trial in results()["trials"]] == ["unfinished"]
    Path("hanging").unlink()
    assert tune(f"{VARY} --trials 2 --seeds 3") == 0
    seeds = [path for path, _ in notes() if "0000" in path]
    assert seeds == [f"out/trials/0000/seed_{seed}.toml" for seed in (0, 1, 1, 2)], "a finished seed is kept"
    assert [trial["state"] for trial in results()["trials"]] == ["complete"] * 2


def test_a_study_that_another_command_begins_meanwhile_is_shared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    list_folder = Path.iterdir

    def begin_and_list(path: Path) -> Iterator[Path]:
        if path.name == "out":
            (path / JOURNAL).touch()
        return list_folder(path)

    monkeypatch.setattr(Path, "iterdir", begin_and_list)
    assert tune(f"{VARY} --seeds 1 --trials 1") == 0


def test_several_commands_share_a_study(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in a thread, with descriptors of its own, as if it were a process; no trial is done twice."""
    monkeypatch.setattr(tune_module, "Signals", lambda: contextlib.nullcontext(SimpleNamespace(received=[])))
    codes: list[int] = []
    flags = f"{VARY} --seeds 1 --trials 10"
    threads = [threading.Thread(target=lambda: codes.append(tune(flags))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [0, 0]
    assert sorted(path for path, _ in notes()) == [f"out/trials/{number:04d}/seed_0.toml" for number in range(10)]
    assert {trial["state"] for trial in results()["trials"]} <= {"complete", "pruned"}  # by whose score came first
