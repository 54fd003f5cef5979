"""Sweeps: what they ask for, how runs are started and ended, and what is kept; with made-up runs and with real ones."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from apex_acer.cli import main
from apex_acer.config.runfile import dump_run, load_run
from apex_acer.tools.sweep import commands, report, training
from apex_acer.tools.sweep.report import portable, read_curve
from apex_acer.tools.sweep.variants import make_variants
from tests.runs import tiny_run

# stands in for `python -m apex_acer`, as what it does depends on the run's gamma
MADE_UP = """
import json, os, pathlib, signal, subprocess, sys, time, tomllib
verb, path, *flags = sys.argv[1:]
note = lambda what: open("notes", "a").write(json.dumps([what, verb, path, flags, time.monotonic()]) + "\\n")
print("not the result", flush=True)
if verb == "evaluate":
    note("start")
    print(json.dumps({"mean": float(flags[3])}))
    sys.exit()
run, folder = tomllib.loads(pathlib.Path(path).read_text()), pathlib.Path(flags[1])
gamma, seed = run["algorithm"]["gamma"], run["seed"]
if gamma == 0.2:  # cannot be interrupted, nor can what it started
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pathlib.Path("grandchild").write_text(str(subprocess.Popen(["sleep", "60"]).pid))
note("start")
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


def run_sweep(flags: str) -> int:
    return main(["sweep", "tiny.toml", "--out", "out", *flags.split()])


def saved() -> str:
    return Path("out/results.json").read_text()


def results() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(saved())
    return found


def notes(what: str = "start") -> list[tuple[str, str]]:
    """Verb and path of the commands so far, in their order."""
    lines = [json.loads(line) for line in Path("notes").read_text().splitlines()]
    return [(verb, path) for happened, verb, path, *_ in lines if happened == what]


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def signal_when(condition: Callable[[], object], *signals: signal.Signals) -> None:
    """Sends this process signals, a second apart, from another thread."""

    def send() -> None:
        wait_until(condition)
        for index, number in enumerate(signals):
            time.sleep(index and 1.0)
            os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()


def gone(pid: int) -> bool:
    listed = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return listed.stdout.strip()[:1] in ("", "Z")


# ── variants ──


def test_variants_are_the_product_in_order_with_typed_values() -> None:
    base = tiny_run(stop__minutes=3.0)
    vary = ["optimizer.learning-rate=1e-3,2e-3", "network.hidden_sizes=64+32,8", "stop.minutes=None"]
    variants = make_variants(base, vary, "tiny")
    assert [variant.name for variant in variants] == [
        "learning_rate=0.001,hidden_sizes=64+32,minutes=None",
        "learning_rate=0.001,hidden_sizes=8,minutes=None",
        "learning_rate=0.002,hidden_sizes=64+32,minutes=None",
        "learning_rate=0.002,hidden_sizes=8,minutes=None",
    ]
    last = variants[-1]
    assert last.overrides == {"optimizer.learning_rate": 0.002, "network.hidden_sizes": (8,), "stop.minutes": None}
    assert (last.config.optimizer.learning_rate, last.config.network.hidden_sizes) == (0.002, (8,))
    assert last.config.stop.minutes is None
    assert last.config.replay == base.replay


def test_keys_may_go_together_and_values_may_need_each_other() -> None:
    capacity, start = "replay.capacity", "replay.start"
    variants = make_variants(tiny_run(), [f"{capacity}:{start}=9000:8000,300:200"], "tiny")
    assert [(v.config.replay.capacity, v.config.replay.start) for v in variants] == [(9000, 8000), (300, 200)]
    assert variants[0].name == "capacity=9000,start=8000"


def test_a_sweep_may_vary_the_algorithm() -> None:
    """Its settings are those of the run if it is the run's, and otherwise the defaults."""
    base = load_run("cartpole")
    acer, dqn = make_variants(base, ["algorithm.name=acer,apex_dqn"], "tiny")
    assert (acer.config, dqn.config) == (base, load_run(base, algorithm={"name": "apex_dqn"}))
    assert dqn.name == "name=apex_dqn"


def test_names_tell_keys_apart_and_are_folders() -> None:
    (variant,) = make_variants(tiny_run(), ["actors.threads=2", "learner.threads=1", "load=/home/me/a b"], "tiny")
    assert variant.name == "actors.threads=2,learner.threads=1,load=a_b"
    (plain,) = make_variants(tiny_run(), [], "tiny")
    assert (plain.name, plain.overrides, plain.config) == ("tiny", {}, tiny_run())


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--vary optimizer.learning_rte=1", ["unknown key optimizer.learning_rte", "optimizer.learning_rate"]),
        ("--vary optimizer=1", ["unknown key optimizer"]),
        ("--vary optimizer.name=sgd", ["optimizer.name", "'sgd'", "rmsprop, adam or module:function"]),
        ("--vary optimizer.learning_rate=1e-3,fast", ["optimizer.learning_rate", "'fast'", "float"]),
        ("--vary optimizer.learning_rate=-1", ["optimizer.learning_rate", "-1.0", "above 0"]),
        ("--vary actors.count=1.5", ["actors.count", "1.5", "int"]),
        ("--vary stop.minutes=long", ["stop.minutes", "'long'", "float"]),
        ("--vary network.hidden_sizes=8+x", ["network.hidden_sizes", "'x'", "int"]),
        ("--vary environment.atari.fire_reset=2", ["fire_reset", "'2'", "True or False"]),
        ("--vary algorithm.gamma", ["vary", "'algorithm.gamma'", "KEY=VALUE"]),
        ("--vary algorithm.gamma=0.9,0.90", ["'gamma=0.9'", "each value once"]),
        ("--vary seed=1,2", ["'seed'", "--seeds"]),
        ("--vary algorithm.gamma=1 --vary algorithm.gamma=0", ["algorithm.gamma", "each key once"]),
        ("--vary optimizer.name:optimizer.eps=adam:1:2", ["'adam:1:2'", "2 values", "optimizer.eps"]),
        ("--vary environment.id=CartPole-v1,Nope-v1", ["environment.id", "Nope-v1", "registered"]),
        ("--load missing.safetensors", ["load", "missing.safetensors"]),
        ("--seeds 0", ["seeds", "0", "1 or more"]),
        ("--seed 2147483647", ["seed", "2147483648"]),
        ("--jobs -1", ["jobs", "-1"]),
        ("--final-episodes -1", ["final_episodes", "-1"]),
        ("--out tiny.toml", ["out", "tiny.toml", "writable"]),
        ("--out other", ["out", "'other'", "not empty"]),
    ],
)
def test_bad_input_gets_one_line_before_anything_starts(
    folder: Path, flags: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("other").mkdir()
    Path("other/file").touch()
    assert run_sweep(flags) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1, captured.err
    assert all(word in captured.err for word in words), captured.err
    assert not captured.out
    assert not Path("out").exists()
    assert {path.name for path in Path("other").iterdir()} == {"file"}


@pytest.mark.parametrize("missing", ["matplotlib", "scipy"])
def test_without_the_extra_one_line_says_how_to_install_it(
    missing: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    for name in (
        "tools.sweep.sweep",
        "tools.sweep.training",
        "tools.sweep.report",
        "views.plots",
    ):
        monkeypatch.delitem(sys.modules, f"apex_acer.{name}")
    monkeypatch.setitem(sys.modules, missing, None)
    assert run_sweep("--seeds 1") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert missing in error
    assert "pip install 'apex-acer[sweep]'" in error


# ── made-up runs ──


def test_runs_go_seed_by_seed_and_their_results_are_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_sweep("--seed 0 --seeds 2 --until 9 --evaluation.every 5 --vary algorithm.gamma=0.5,0.6 --jobs 1") == 0
    paths = [f"out/gamma={gamma}/seed_{seed}.toml" for seed in (0, 1) for gamma in (0.5, 0.6)]
    assert notes() == [("train", path) for path in paths]
    assert load_run(paths[-1]) == tiny_run(
        seed=1, algorithm__gamma=0.6, stop__at_return=9.0, evaluation__every=5, algorithm__replay_ratio=1.0
    )
    data = results()
    found = data["variants"]["gamma=0.6"]
    assert found["overrides"] == {"algorithm.gamma": 0.6}
    assert found["runs"]["1"]["result"]["weights"] == "gamma=0.6/seed_1/weights.safetensors"
    assert found["runs"]["1"]["result"]["threads"] == "1"
    assert (found["runs"]["1"]["curve_of"], found["runs"]["1"]["curve"]) == ("evaluator", [[8, 7.0, 0.5]])
    summary = found["summary"]
    assert (summary["finished"], summary["asked"], summary["reached"]) == (2, 2, 0.5)
    assert summary["env_steps"] == {"median": 150.0, "quartiles": [125.0, 175.0]}
    assert summary["eval_return"] == {"iqm": 6.5, "interval": [6.0, 7.0]}
    assert summary["final_return"] is None
    rows = [re.split(r"\s{2,}", line) for line in capsys.readouterr().out.splitlines() if line.startswith("gamma=0.6 ")]
    assert rows == [["gamma=0.6", "2/2", "50%", "150 (125 to 175)", "0.5 (0.5 to 0.5)", "6.50 [6.00, 7.00]", "–"]]
    with Image.open("out/curves.png") as image:
        assert image.width > image.height > 300


def test_no_more_than_jobs_at_once_and_one_that_ends_makes_room(folder: Path) -> None:
    assert run_sweep("--seeds 5 --jobs 2") == 0
    marks = [json.loads(line) for line in Path("notes").read_text().splitlines()]
    alive = [sum(1 if what == "start" else -1 for what, *_ in marks[: i + 1]) for i in range(len(marks))]
    assert max(alive) == 2
    assert len(marks) == 10


def test_final_episodes_are_fresh_ones_of_every_finished_run(folder: Path) -> None:
    assert run_sweep("--seed 5 --seeds 2 --final-episodes 7 --jobs 1") == 0
    lines = [json.loads(line) for line in Path("notes").read_text().splitlines()]
    evaluations = [(path, flags) for _, verb, path, flags, _ in lines if verb == "evaluate"]
    assert evaluations == [
        (path, ["--episodes", "7", "--seed", str(seed + 1000), "--import-modules", "--json"])
        for seed, path in ((seed, f"out/tiny/seed_{seed}/weights.safetensors") for seed in (5, 6))
    ]
    assert [verb for verb, _ in notes()] == ["train", "evaluate", "train", "evaluate"]
    found = results()["variants"]["tiny"]
    assert [run["final_return"] for run in found["runs"].values()] == [1005, 1006]
    assert found["summary"]["final_return"] == {"iqm": 1005.5, "interval": [1005.0, 1006.0]}


def test_a_run_that_fails_is_named_and_the_same_command_makes_up_for_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "--seeds 2 --vary algorithm.gamma=0.1,0.3,0.5 --jobs 3"
    assert run_sweep(flags) == 1
    last = capsys.readouterr().err.splitlines()
    assert len(last) == 4
    assert any("gamma=0.1/seed_1 failed: exit code 1" in line and "out/gamma=0.1/seed_1.log" in line for line in last)
    assert "ZeroDivisionError" in Path("out/gamma=0.1/seed_1.log").read_text()
    runs = {name: found["runs"] for name, found in results()["variants"].items()}
    error = "exit code 1 | Traceback | ZeroDivisionError: in env.py"
    assert runs["gamma=0.1"]["0"] == {"error": error}
    assert runs["gamma=0.3"]["1"] == {"error": "exit code 0"}
    assert "result" in runs["gamma=0.5"]["1"]

    before = notes()
    Path("mended").touch()
    assert run_sweep(flags) == 1
    again = sorted(path for _, path in notes()[len(before) :])
    assert again == [f"out/gamma={gamma}/seed_{seed}.toml" for gamma in (0.1, 0.3) for seed in (0, 1)]
    assert "result" in results()["variants"]["gamma=0.1"]["runs"]["0"]
    assert "error" not in results()["variants"]["gamma=0.1"]["runs"]["0"]


def test_a_failed_evaluation_is_made_up_for_without_training_again(folder: Path) -> None:
    made_up = Path("made_up.py")
    made_up.write_text(MADE_UP.replace('if verb == "evaluate":', 'if verb == "evaluate":\n    sys.exit(3)'))
    assert run_sweep("--seeds 1 --final-episodes 2") == 1
    run = results()["variants"]["tiny"]["runs"]["0"]
    assert run["error"].startswith("exit code 3")
    assert "result" in run
    made_up.write_text(MADE_UP)
    assert run_sweep("--seeds 1 --final-episodes 2") == 0
    assert [verb for verb, _ in notes()] == ["train", "evaluate"]
    assert results()["variants"]["tiny"]["runs"]["0"]["final_return"] == 1000


def test_a_folder_of_another_sweep_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_sweep("--seeds 1") == 0
    before = saved()
    for flags in ("--seeds 2", "--seeds 1 --final-episodes 1", "--seeds 1 --algorithm.gamma 0.7"):
        capsys.readouterr()
        assert run_sweep(flags) == 2
        assert "holds another sweep" in capsys.readouterr().err
        assert saved() == before
    Path("out/results.json").write_text('{"seeds": []}')
    assert run_sweep("--seeds 1") == 2
    assert "results.json" in capsys.readouterr().err


def test_a_folder_in_use_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("out").mkdir()
    lock = os.open("out", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert run_sweep("--seeds 1") == 2
    assert "in use" in capsys.readouterr().err
    os.close(lock)
    assert run_sweep("--seeds 1") == 0


@pytest.fixture
def _heard_hangups() -> Iterator[None]:
    """Undoes a `nohup` that the tests themselves may run under: a sweep keeps to it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("_heard_hangups")
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)])
def test_a_signal_ends_all_runs_and_the_same_command_goes_on(
    number: signal.Signals, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "--seeds 2 --vary algorithm.gamma=0.5,0.4 --jobs 2"
    signal_when(lambda: Path("out/gamma=0.4/seed_0").exists() and '"reason"' in saved(), number)
    start = time.monotonic()
    assert run_sweep(flags) == 128 + number
    assert time.monotonic() - start < 10
    assert number.name in capsys.readouterr().err
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
    monkeypatch.setattr(commands, "STOP_S", stop_s)
    signal_when(lambda: Path("out/tiny/seed_0").exists(), *signals)
    assert run_sweep("--seeds 2 --algorithm.gamma 0.2 --jobs 1") == 130
    assert notes() == [("train", "out/tiny/seed_0.toml")]
    grandchild = int(Path("grandchild").read_text())
    wait_until(lambda: gone(grandchild))
    assert results()["variants"]["tiny"]["runs"] == {}


def test_an_error_while_saving_leaves_no_run_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, data: bytes) -> None:
        if Path("grandchild").exists():
            raise OSError("no space left")
        whole(path, data)

    whole = report.write
    monkeypatch.setattr(report, "write", fail)
    Path("made_up.py").write_text(MADE_UP.replace("    sys.exit(1)", "    time.sleep(1)\n    sys.exit(1)"))
    assert run_sweep("--seeds 1 --vary algorithm.gamma=0.1,0.2 --jobs 2") == 1
    wait_until(lambda: gone(int(Path("grandchild").read_text())))


# ── what is kept ──


def test_the_actors_curve_is_thinned_to_means(tmp_path: Path) -> None:
    rows = [
        {"source": f"actor_{i % 2}", "env_steps": i, "episode_return": 2.0 * i, "wall_s": i / 10} for i in range(600)
    ]
    rows += [
        {"source": "learner", "env_steps": 600, "wall_s": 60.0},
        {"source": "actor_0", "env_steps": 600, "wall_s": 60.0},
    ]
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    source, curve = read_curve(path)
    assert (source, len(curve)) == ("actors", 200)
    assert curve[0] == pytest.approx([1, 2, 0.1])
    assert curve[-1] == pytest.approx([598, 1196, 59.8])
    path.write_text("")
    assert read_curve(path) == ("actors", [])


def test_portable_cuts_absolute_paths_only() -> None:
    texts = {
        "/home/me/runs/a.toml": "a.toml",
        "--out=/tmp/x/out --load '/data/b.safetensors'": "--out=out --load 'b.safetensors'",
        "ALE/Pong-v5": "ALE/Pong-v5",
        "runs/../a/b": "runs/../a/b",
        "./a/b 1/2": "./a/b 1/2",
        "https://arxiv.org/abs/1": "https://arxiv.org/abs/1",
    }
    assert portable({"a": list(texts), "b": (1, None)}) == {"a": list(texts.values()), "b": [1, None]}


# ── real runs ──


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to stand in, with `tiny.toml`, a wrapper that takes its time for a while and one that fails in runs."""
    monkeypatch.chdir(tmp_path)
    Path("wrappers.py").write_text(
        "import gymnasium, os, time\n"
        "class Slow(gymnasium.Wrapper):\n"
        "    def step(self, action):\n"
        "        time.sleep(0.1 if os.path.exists('slow') else 0)\n"
        "        return super().step(action)\n"
        "def vanishing(environment):\n"
        "    if os.path.exists('out/results.json'):\n"
        "        raise ZeroDivisionError('the game is gone')\n"
        "    return environment\n"
    )
    Path("tiny.toml").write_text(dump_run(tiny_run(stop__env_steps=300, evaluation__every=100)))
    return tmp_path


def test_a_real_run_that_fails(real: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_sweep("--seeds 1 --vary environment.wrappers=wrappers:vanishing") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("apex-acer: wrappers=wrappers:vanishing/seed_0 failed: exit code 2 | apex-acer: ")
    assert "the game is gone" in line
    assert "the game is gone" in Path(line.rpartition("see ")[2]).read_text()
    assert results()["variants"]["wrappers=wrappers:vanishing"]["summary"]["finished"] == 0


@pytest.mark.slow
def test_ctrl_c_leaves_no_process_and_the_same_command_goes_on(real: Path) -> None:
    """A run that has ended and played its final episodes is kept; one that is training saves and is made again."""
    flags = ["--vary", "environment.wrappers=,wrappers:Slow", "--seeds", "1", "--jobs", "2", "--final-episodes", "3"]
    arguments = ["sweep", str(real / "tiny.toml"), "--out", str(real / "out"), *flags]
    Path("slow").touch()
    process = subprocess.Popen([sys.executable, "-m", "apex_acer", *arguments], stderr=subprocess.PIPE, text=True)
    curves = [real / "out" / name / "seed_0/metrics.jsonl" for name in ("wrappers=", "wrappers=wrappers:Slow")]
    wait_until(lambda: curves[1].exists() and curves[1].read_text() and re.search(r'"final_return": \d', saved()))
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=20)
    assert process.returncode == 130, error
    assert "continues the sweep" in error
    assert str(real) not in subprocess.run(["ps", "-A", "-ww", "-o", "args="], capture_output=True, text=True).stdout
    before = results()["variants"]
    assert before["wrappers=wrappers:Slow"]["runs"] == {}
    assert (curves[1].parent / "weights.safetensors").exists()

    Path("slow").unlink()
    inode = curves[0].stat().st_ino
    assert main(arguments) == 0
    assert curves[0].stat().st_ino == inode
    after = results()["variants"]
    assert after["wrappers="] == before["wrappers="]
    run = after["wrappers=wrappers:Slow"]["runs"]["0"]
    assert run["result"]["reason"] == "env_steps"
    assert run["result"]["env_steps"] >= 300
    assert run["curve_of"] == "evaluator"
    assert run["curve"][-1][:2] == [pytest.approx(300, abs=100), run["result"]["eval_return"]]
    assert 1 <= run["final_return"] <= 500
    assert (real / "out" / run["result"]["weights"]).is_file()
    assert str(real.parent) not in saved()
    assert len(saved()) < 10_000
    assert Path("out/curves.png").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["serial", "local"])
def test_a_run_whose_sweep_is_killed_saves_and_ends(real: Path, engine: str) -> None:
    flags = ["--engine", engine, "--stop.env_steps", str(10**8), "--seeds", "1", "--out", str(real / "out")]
    command = [sys.executable, "-m", "apex_acer", "sweep", str(real / "tiny.toml"), *flags]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    run = real / "out" / "tiny" / "seed_0"
    wait_until(lambda: (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").read_text())
    process.kill()
    process.wait()
    wait_until(lambda: str(real) not in subprocess.check_output(["ps", "-A", "-ww", "-o", "args="], text=True))
    assert (run / "weights.safetensors").exists()
    locks: list[int | None] = []
    wait_until(lambda: locks.append(training.lock_folder(real / "out")) or locks[-1] is not None)
    assert locks[-1] is not None
    os.close(locks[-1])
