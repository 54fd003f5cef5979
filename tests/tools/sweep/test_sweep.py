"""Sweeps: what they ask for, how runs are started and ended, and what is kept; with made-up runs and with real ones."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from apex_acer.cli import main
from apex_acer.config.runfile import dump_run, load_run
from apex_acer.storage import checkpoint
from apex_acer.system.files import write
from apex_acer.tools.sweep import report, training
from apex_acer.tools.sweep.report import bootstrap_interval, interquartile_mean, portable, read_curve
from apex_acer.tools.sweep.sweep import plan_sweep
from apex_acer.tools.sweep.variants import make_variants
from tests.conftest import Refused, assert_refused
from tests.programs import eventually, signal_when
from tests.runs import tiny_run

# stands in for `python -m apex_acer`, as what it does depends on the run's gamma
MADE_UP = """
import json, os, pathlib, signal, subprocess, sys, time, tomllib
verb, path, *flags = sys.argv[1:]
note = lambda what: open("notes", "a").write(json.dumps([what, verb, path, flags, time.monotonic()]) + "\\n")
print("not the result", flush=True)
if verb == "evaluate":
    note("start")
    if "gamma=0.7" in path and not os.path.exists("mended"):
        sys.exit(3)
    print(json.dumps({"mean": float(flags[3])}))
    sys.exit()
if verb == "resume":
    note("start")
    sys.exit(1)
run, folder = tomllib.loads(pathlib.Path(path).read_text()), pathlib.Path(flags[1])
gamma, seed = run["algorithm"]["gamma"], run["seed"]
if gamma == 0.2:  # cannot be interrupted, nor can what it started
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pathlib.Path("grandchild").write_text(str(subprocess.Popen(["sleep", "60"]).pid))
note("start")
while os.path.exists("together") and open("notes").read().count("start") < 2:
    time.sleep(0.01)
folder.mkdir()
if gamma == 0.1 and not os.path.exists("mended"):
    print("Traceback\\nZeroDivisionError: in " + os.getcwd() + "/env.py\\n", file=sys.stderr)
    sys.exit(1)
if gamma == 0.3:
    sys.exit()
time.sleep(60 if gamma in (0.2, 0.4) and not os.path.exists("mended") else 0.1)
row = {"source": "evaluator", "env_steps": 9, "eval_env_steps": 8, "eval_return": 10.0 * gamma + seed, "wall_s": 0.5}
(folder / "metrics.jsonl").write_text(json.dumps(row))
result = {"reason": "at_return" if seed else "env_steps", "env_steps": 100 * (seed + 1), "updates": 1, "wall_s": 0.5}
result |= {"startup_s": 0.1, "eval_return": row["eval_return"], "weights": os.path.abspath(folder / "weights.safetensors")}
result["threads"] = os.environ.get("OMP_NUM_THREADS")
note("end")
print(json.dumps(result))
print("{goodbye}", file=sys.stderr)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the test stands, with a run file `tiny.toml` and made-up commands."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training, "PROGRAM", (sys.executable, "-S", "made_up.py"))
    Path("made_up.py").write_text(MADE_UP)
    Path("tiny.toml").write_text(dump_run(tiny_run()))
    return tmp_path


SWEEP = ["sweep", "tiny.toml", "--out", "out"]


def run_sweep(flags: str) -> int:
    return main([*SWEEP, *flags.split()])


def saved() -> str:
    return Path("out/results.json").read_text()


def results() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(saved())
    return found


def marks() -> list[str]:
    """The starts and ends of commands so far."""
    return Path("notes").read_text().splitlines()


def notes() -> list[tuple[str, str]]:
    """Verb and path of the commands so far, in their order."""
    return [(verb, path) for happened, verb, path, *_ in map(json.loads, marks()) if happened == "start"]


def gone(pid: int) -> bool:
    listed = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return listed.stdout.strip()[:1] in ("", "Z")


# ── variants ──


def test_variants_are_the_product_in_order_with_typed_values() -> None:
    base = tiny_run(stop__minutes=3.0)
    capacity, start = "replay.capacity", "replay.start"
    vary = ["optimizer.learning-rate=1e-3,2e-3", "network.hidden_sizes=64+32,8", "stop.minutes=None"]
    variants = make_variants(base, [*vary, f"{capacity}:{start}=9000:8000"], "tiny")
    assert [variant.name for variant in variants] == [
        f"learning_rate={rate},hidden_sizes={sizes},minutes=None,capacity=9000,start=8000"
        for rate in (0.001, 0.002)
        for sizes in ("64+32", "8")
    ]
    together = {capacity: 9000, start: 8000}  # neither is allowed without the other
    overrides: dict[str, Any] = {
        "optimizer.learning_rate": 0.002,
        "network.hidden_sizes": (8,),
        "stop.minutes": None,
        **together,
    }
    assert variants[-1].overrides == overrides
    assert variants[-1].config == tiny_run(**{key.replace(".", "__"): value for key, value in overrides.items()})
    (plain,) = make_variants(base, [], "tiny")
    assert (plain.name, plain.overrides, plain.config) == ("tiny", {}, base)
    (alike,) = make_variants(base, ["actors.threads=2", "learner.threads=1", "load=/home/me/a b"], "tiny")
    assert alike.name == "actors.threads=2,learner.threads=1,load=a_b", "a folder, which tells keys apart"
    empty, _ = make_variants(base, ["environment.wrappers=,tests.helpers:plain"], "tiny")
    weights = f"{empty.name}/seed_0/weights.safetensors"
    assert portable(weights) == weights == "wrappers=none/seed_0/weights.safetensors"


def test_a_sweep_may_vary_the_algorithm() -> None:
    """Its settings are those of the run if it is the run's, and otherwise the defaults."""
    base = load_run("cartpole")
    acer, dqn = make_variants(base, ["algorithm.name=acer,apex_dqn"], "tiny")
    assert (acer.config, dqn.config) == (base, load_run(base, algorithm={"name": "apex_dqn"}))
    assert dqn.name == "name=apex_dqn"


def test_bad_input_gets_one_line_before_anything_starts(folder: Path, refused: Refused) -> None:
    Path("other").mkdir()
    Path("other/file").touch()
    table = {
        "--vary optimizer.learning_rte=1": "unknown key optimizer.learning_rte … optimizer.learning_rate",
        "--vary optimizer.learning_rate=-1": "optimizer.learning_rate … -1.0 … above 0",
        "--vary network.hidden_sizes=8+x": "network.hidden_sizes … 'x' … int",
        "--vary algorithm.gamma": "vary … 'algorithm.gamma' … KEY=VALUE",
        "--vary algorithm.gamma=0.9,0.90": "'gamma=0.9' … each value once",
        "--vary seed=1,2": "'seed' … --seeds",
        "--vary algorithm.gamma=1 --vary algorithm.gamma=0": "algorithm.gamma … each key once",
        "--vary optimizer.name:optimizer.eps=adam:1:2": "'adam:1:2' … 2 values … optimizer.eps",
        "--vary environment.id=CartPole-v1,Nope-v1": "environment.id … Nope-v1 … registered",
        "--load missing.safetensors": "load … missing.safetensors",
        "--jobs -1": "jobs … -1",
        "--seed 2147483647": "seed … 2147483648",
        "--out tiny.toml": "out … tiny.toml … writable",
        "--out other": "out … 'other' … not empty",
    }
    assert_refused(refused, {f"{' '.join(SWEEP)} {flags}": parts for flags, parts in table.items()})
    assert not Path("out").exists()
    assert {path.name for path in Path("other").iterdir()} == {"file"}


def test_a_sweep_of_the_folder_in_which_one_stands_has_that_folder_s_name(folder: Path) -> None:
    Path("run/seed_0").mkdir(parents=True)
    Path("run/config.toml").write_text(dump_run(tiny_run()))
    for name in (".", "../run"):
        jobs = plan_sweep(tiny_run(out="out"), [name], seeds=1, vary=[], at_once=1, final_episodes=0)._jobs
        assert [*jobs] == [f"{folder.name if name == '.' else 'run'}/seed_0"]


# ── made-up runs ──


def test_runs_go_seed_by_seed_with_final_episodes_and_their_results_are_kept(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "--seed 0 --seeds 2 --until 9 --evaluation.every 5 --vary algorithm.gamma=0.5,0.6 --jobs 1"
    assert run_sweep(f"{flags} --final-episodes 7") == 0
    runs = [f"out/gamma={gamma}/seed_{seed}" for seed in (0, 1) for gamma in (0.5, 0.6)]
    both = (("train", ".toml"), ("evaluate", "/weights.safetensors"))
    assert notes() == [(verb, f"{run}{end}") for run in runs for verb, end in both]
    assert load_run(f"{runs[-1]}.toml") == tiny_run(
        seed=1, algorithm__gamma=0.6, stop__at_return=9.0, evaluation__every=5, algorithm__replay_ratio=1.0
    )
    evaluations = [flags for _, verb, _, flags, _ in map(json.loads, marks()) if verb == "evaluate"]
    assert evaluations[-1] == ["--episodes", "7", "--seed", "1001", "--import-modules", "--json"], "fresh episodes"
    found = results()["variants"]["gamma=0.6"]
    assert found["overrides"] == {"algorithm.gamma": 0.6}
    run = found["runs"]["1"]
    assert run["result"]["weights"] == "gamma=0.6/seed_1/weights.safetensors"
    assert run["result"]["threads"] == "1"
    assert (run["curve_of"], run["curve"], run["final_return"]) == ("evaluator", [[8, 7.0, 0.5]], 1001)
    summary = found["summary"]
    assert (summary["finished"], summary["asked"], summary["reached"]) == (2, 2, 0.5)
    assert summary["env_steps"] == {"median": 150.0, "quartiles": [125.0, 175.0]}
    assert summary["eval_return"] == {"iqm": 6.5, "interval": [6.0, 7.0]}
    assert summary["final_return"] == {"iqm": 1000.5, "interval": [1000.0, 1001.0]}
    (row,) = (re.split(r"\s{2,}", line) for line in capsys.readouterr().out.splitlines() if line[:10] == "gamma=0.6 ")
    texts = ["gamma=0.6", "2/2", "50%", "150 (125 to 175)", "0.5 (0.5 to 0.5)", "6.50 [6.00, 7.00]"]
    assert row == [*texts, "1,000.50 [1,000.00, 1,001.00]"]
    with Image.open("out/curves.png") as image:
        assert image.width > image.height > 300


def test_no_more_than_jobs_at_once_and_one_that_ends_makes_room(folder: Path) -> None:
    Path("together").touch()
    assert run_sweep("--seeds 4 --jobs 2") == 0
    kinds = [json.loads(line)[0] for line in marks()]
    assert [kinds.count(kind) for kind in ("start", "end")] == [4, 4]
    assert max(kinds[:end].count("start") - kinds[:end].count("end") for end in range(9)) == 2


def test_a_run_or_an_evaluation_that_fails_is_named_and_the_same_command_makes_up_for_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "--seeds 2 --vary algorithm.gamma=0.1,0.3,0.5,0.7 --jobs 4 --final-episodes 2"
    assert run_sweep(flags) == 1
    last = capsys.readouterr().err.splitlines()
    assert len(last) == 6
    assert any("gamma=0.1/seed_1 failed: exit code 1" in line and "out/gamma=0.1/seed_1.log" in line for line in last)
    assert "ZeroDivisionError" in Path("out/gamma=0.1/seed_1.log").read_text()
    runs = {name: found["runs"] for name, found in results()["variants"].items()}
    assert runs["gamma=0.1"]["0"] == {"error": "exit code 1 | Traceback | ZeroDivisionError: in env.py"}
    assert runs["gamma=0.3"]["1"] == {"error": "exit code 0"}
    assert "result" in runs["gamma=0.5"]["1"]
    assert runs["gamma=0.7"]["1"]["error"].startswith("exit code 3")
    assert "result" in runs["gamma=0.7"]["1"]

    before = notes()
    Path("mended").touch()
    assert run_sweep(flags) == 1
    again = notes()[len(before) :]
    trained = [f"out/gamma={gamma}/seed_{seed}.toml" for gamma in (0.1, 0.3) for seed in (0, 1)]
    assert sorted(path for verb, path in again if verb == "train") == trained
    runs = {name: found["runs"] for name, found in results()["variants"].items()}
    assert runs["gamma=0.1"]["0"].keys() == runs["gamma=0.7"]["0"].keys() == runs["gamma=0.5"]["0"].keys()
    assert "error" not in runs["gamma=0.7"]["0"]


@pytest.mark.parametrize(
    ("state", "verb"),
    [
        ({}, "resume"),
        ({"env_steps": 1000}, "train"),
        ({"wall_s": 60.0}, "train"),
        ({"evaluations": {"passed": True}}, "train"),
    ],
)
def test_a_run_that_failed_is_resumed_from_a_checkpoint_before_its_end(
    folder: Path, state: dict[str, Any], verb: str
) -> None:
    flags = "--seeds 1 --algorithm.gamma 0.1 --minutes 1"
    assert run_sweep(flags) == 1
    before = {"env_steps": 999, "wall_s": 59.0, "evaluations": {"passed": False}}
    checkpoint.write(folder / "out/tiny/seed_0", 1, before | state, {})
    assert run_sweep(flags) == 1
    assert [verb for verb, _ in notes()] == ["train", verb]


def test_a_run_that_ended_before_its_result_was_saved_is_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--seeds 2 --final-episodes 2"
    assert run_sweep(flags) == 0
    before = results()
    (runs,) = [variant["runs"] for variant in before["variants"].values()]
    lost = {**before, "variants": {"tiny": {"overrides": {}, "runs": {"0": runs["0"]}}}}
    Path("out/results.json").write_text(json.dumps(lost))
    Path("out/tiny/seed_1.json").write_text(json.dumps(runs["1"]["result"]))
    capsys.readouterr()
    assert run_sweep(flags) == 0
    assert capsys.readouterr().out.startswith("tiny/seed_1: at_return: 200 env steps")
    assert [verb for verb, _ in notes()] == ["train", "train", "evaluate", "evaluate", "evaluate"]
    assert results() == before


def test_a_folder_in_use_or_of_another_sweep_is_refused(folder: Path, refused: Refused) -> None:
    Path("out").mkdir()
    lock = os.open("out", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert "in use" in refused(*SWEEP)
    os.close(lock)
    assert run_sweep("--seeds 1") == 0
    before = saved()
    for flags in ("--seeds 2", "--seeds 1 --final-episodes 1", "--seeds 1 --algorithm.gamma 0.7"):
        assert "holds another sweep" in refused(*SWEEP, *flags.split())
        assert saved() == before
    for name in ("a", "b"):  # the file has only the last part of a path
        Path(name).mkdir()
        Path(name, "x.safetensors").touch()
    assert main([*SWEEP[:-1], "loaded", "--seeds", "1", "--load", f"{folder}/a/x.safetensors"]) == 0
    assert "holds another sweep" in refused(
        *SWEEP[:-1], "loaded", "--seeds", "1", "--load", f"{folder}/b/x.safetensors"
    )
    Path("out/results.json").write_text('{"seeds": []}')
    assert "results.json" in refused(*SWEEP)


def test_a_signal_ends_all_runs_and_the_same_command_goes_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--seeds 2 --vary algorithm.gamma=0.5,0.4 --jobs 2"
    signal_when(lambda: Path("out/gamma=0.4/seed_0").exists() and '"reason"' in saved(), signal.SIGTERM)
    start = time.monotonic()
    assert run_sweep(flags) == 128 + signal.SIGTERM
    assert time.monotonic() - start < 10
    waits, ends = capsys.readouterr().err.splitlines()
    assert waits == "apex-acer: SIGTERM: waiting for runs to save and end; a second signal kills them"
    assert ends == "apex-acer: SIGTERM: the same command with --out out continues the sweep"
    runs = {name: found["runs"] for name, found in results()["variants"].items()}
    assert "result" in runs["gamma=0.5"]["0"]
    assert runs["gamma=0.4"] == {}
    assert Path("out/curves.png").exists()
    Path("mended").touch()
    assert run_sweep(flags) == 0
    assert notes().count(("train", "out/gamma=0.5/seed_0.toml")) == 1
    assert [found["summary"]["finished"] for found in results()["variants"].values()] == [2, 2]


@pytest.mark.parametrize(("stop_s", "signals"), [(0.3, [signal.SIGINT]), (60.0, [signal.SIGINT, signal.SIGINT])])
def test_a_run_that_cannot_be_interrupted_is_killed_with_all_it_started(
    folder: Path, stop_s: float, signals: list[signal.Signals], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "STOP_S", stop_s)
    signal_when(lambda: Path("out/tiny/seed_0").exists(), *signals)
    assert run_sweep("--seeds 2 --algorithm.gamma 0.2 --jobs 1") == 130
    assert notes() == [("train", "out/tiny/seed_0.toml")]
    grandchild = int(Path("grandchild").read_text())
    eventually(lambda: gone(grandchild), 60)
    assert results()["variants"]["tiny"]["runs"] == {}


def test_a_replay_memory_takes_longer_to_save() -> None:
    assert training.stop_s([tiny_run(), tiny_run(checkpoint__replay=True)]) > 100 > training.stop_s([tiny_run()])


def test_an_error_while_saving_leaves_no_run_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, data: bytes) -> None:
        if Path("grandchild").exists():
            raise OSError("no space left")
        whole(path, data)

    whole = write
    monkeypatch.setattr(report, "write", fail)
    Path("made_up.py").write_text(MADE_UP.replace("    sys.exit(1)", "    time.sleep(1)\n    sys.exit(1)"))
    assert run_sweep("--seeds 1 --vary algorithm.gamma=0.1,0.2 --jobs 2") == 1
    eventually(lambda: gone(int(Path("grandchild").read_text())), 60)


# ── what is kept ──


def test_the_actors_curve_is_thinned_to_means(tmp_path: Path) -> None:
    path, rows = tmp_path / "metrics.jsonl", [{"source": source, "env_steps": 600, "wall_s": 60.0} for source in "la"]
    rows += [
        {"source": f"actor_{i % 2}", "env_steps": i, "episode_return": 2.0 * i, "wall_s": i / 10} for i in range(600)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    source, curve = read_curve(path)
    assert (source, len(curve)) == ("actors", 200)
    assert curve[0] == pytest.approx([1, 2, 0.1])
    assert curve[-1] == pytest.approx([598, 1196, 59.8])
    path.write_text("")
    assert read_curve(path) == ("actors", [])


def test_portable_cuts_absolute_paths_only() -> None:
    kept = ["ALE/Pong-v5", "runs/../a/b", "./a/b 1/2", "https://arxiv.org/abs/1"]
    texts = {"/home/me/runs/a.toml": "a.toml", "--out=/tmp/x/out --load '/data/b'": "--out=out --load 'b'"}
    assert portable({"a": [*kept, *texts], "b": (1, None)}) == {"a": [*kept, *texts.values()], "b": [1, None]}


# ── statistics ──


def test_an_interquartile_mean_leaves_out_a_quarter_at_each_end_and_is_of_finite_values() -> None:
    assert interquartile_mean([0, 1, 2, 3, 1000]) == pytest.approx(2.0)  # one at each end: 1, 2, 3
    assert interquartile_mean([3, 4, 8]) == pytest.approx(5.0)  # floor(3 / 4) = 0
    for values in ([], [1.0, np.nan], [[1.0], [2.0]]):
        for statistic in (interquartile_mean, bootstrap_interval):
            with pytest.raises(ValueError, match="finite values in one dimension"):
                statistic(values)


def test_interval_is_the_one_of_rliable() -> None:
    """`rliable.library.get_interval_estimates` (1.2.0, 50,000 draws, the interquartile mean of 0 to 7) gave 1.5 to 5.5."""
    assert bootstrap_interval(range(8)) == pytest.approx((1.5, 5.5), abs=0.26)  # the ends are multiples of 1/4
    assert bootstrap_interval(range(8)) == bootstrap_interval(range(8))
    assert bootstrap_interval([0.0, 1.0]) == (0.0, 1.0)
    assert bootstrap_interval([4.0]) is None


# ── real runs ──


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to stand in, with `tiny.toml` and a wrapper that fails in runs."""
    monkeypatch.chdir(tmp_path)
    Path("wrappers.py").write_text(
        "import os\n"
        "plain = lambda environment: environment\n"
        "def vanishing(environment):\n"
        "    if os.path.exists('out/results.json'):\n"
        "        raise ZeroDivisionError('the game is gone')\n"
        "    return environment\n"
    )
    Path("tiny.toml").write_text(dump_run(tiny_run(stop__env_steps=300, evaluation__every=100)))
    return tmp_path


def test_a_real_run_that_ends_and_one_that_fails(real: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_sweep("--seeds 1 --vary environment.wrappers=wrappers:plain,wrappers:vanishing") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("apex-acer: wrappers=wrappers:vanishing/seed_0 failed: exit code 2 | apex-acer: ")
    assert "the game is gone" in line
    assert "the game is gone" in Path(line.rpartition("see ")[2]).read_text()
    assert results()["variants"]["wrappers=wrappers:vanishing"]["summary"]["finished"] == 0
    run = results()["variants"]["wrappers=wrappers:plain"]["runs"]["0"]
    assert (run["result"]["reason"], run["curve_of"]) == ("env_steps", "evaluator")
    assert run["curve"][-1][:2] == [pytest.approx(300, abs=100), run["result"]["eval_return"]]
    assert (real / "out" / run["result"]["weights"]).is_file()
    assert str(real.parent) not in saved()


def test_a_run_that_was_interrupted_goes_on_from_its_checkpoint(real: Path) -> None:
    flags = "--seeds 1 --steps 8000 --evaluation.every 500"
    run = real / "out/tiny/seed_0"
    signal_when(lambda: read_curve(run / "metrics.jsonl")[0] == "evaluator", signal.SIGTERM)
    assert run_sweep(flags) == 128 + signal.SIGTERM
    before = read_curve(run / "metrics.jsonl")[1]
    assert results()["variants"]["tiny"]["runs"] == {}
    assert run_sweep(flags) == 0
    found = results()["variants"]["tiny"]["runs"]["0"]
    assert found["curve"][: len(before)] == before
    assert found["result"]["env_steps"] >= 8000


@pytest.mark.slow
def test_a_run_whose_sweep_is_killed_saves_and_ends(real: Path) -> None:
    flags = ["--stop.env_steps", str(10**8), "--seeds", "1", "--out", str(real / "out")]
    command = [sys.executable, "-m", "apex_acer", "sweep", str(real / "tiny.toml"), *flags]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    run = real / "out" / "tiny" / "seed_0"
    eventually(lambda: (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").read_text(), 60)
    process.kill()
    process.wait()
    eventually(lambda: str(real) not in subprocess.check_output(["ps", "-A", "-ww", "-o", "args="], text=True), 60)
    assert (run / "weights.safetensors").exists()

    def can_be_locked() -> bool:
        lock = training.lock_folder(real / "out")
        if lock is not None:
            os.close(lock)
        return lock is not None

    eventually(can_be_locked, 60)


@pytest.mark.parametrize(
    ("engines", "cores", "at_once"), [(("local", "serial"), 7, 3), (("serial", "serial"), 7, 7), (("local",), 1, 1)]
)
def test_a_sweep_runs_as_many_at_once_as_it_has_cores_for(
    engines: tuple[Any, ...], cores: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "available_cores", lambda: cores)
    configs = [dataclasses.replace(load_run("cartpole"), engine=engine) for engine in engines]
    assert training.runs_at_once(configs) == at_once
