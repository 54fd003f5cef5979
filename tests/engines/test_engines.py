"""What every engine does alike: whole runs, their ends and what they leave behind."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from apex_acer.actor.policy import load_policy
from apex_acer.config import ConfigError, RunConfig
from apex_acer.config.runfile import load_run
from apex_acer.engines import ENGINES
from apex_acer.engines.engine import Run
from apex_acer.manager.callbacks import Callbacks
from apex_acer.manager.manager import Manager, RunFailed, resume, train
from apex_acer.manager.record import Record
from apex_acer.manager.result import TrainResult
from apex_acer.manager.trackers import Trackers
from apex_acer.networks import weights
from apex_acer.protocol.metrics import METRICS
from apex_acer.system.signals import Signals
from tests import ROOT
from tests.programs import program
from tests.runs import CARTPOLE, tiny_run

EXAMPLES = ROOT / "docs/examples"


@pytest.fixture(scope="module", params=sorted(ENGINES))
def engine(request: pytest.FixtureRequest) -> str:
    """The name of each engine; Ray is started once for all."""
    if request.param == "ray":
        request.getfixturevalue("ray_here")
    return str(request.param)


slow_on_ray = pytest.mark.parametrize(
    "engine", ["local", pytest.param("ray", marks=pytest.mark.slow), "serial"], indirect=True
)
WholeRun = tuple[RunConfig, TrainResult, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def whole_run(engine: str, tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    """Every role, for a moment; on Ray for more, because a busy machine may start the evaluator seconds after the actors."""
    out = tmp_path_factory.mktemp(engine)
    config = tiny_run(out, engine=engine, evaluation__every=500, stop__env_steps=15_000 if engine == "ray" else 4000)
    statuses: list[dict[str, Any]] = []
    return config, train(config, Callbacks(on_status=statuses.append)), statuses


def test_whole_run_returns_what_happened(whole_run: WholeRun) -> None:
    config, result, statuses = whole_run
    assert (result.reason, result.exit_code) == ("env_steps", 0)
    assert 0 <= result.env_steps - config.stop.env_steps < 5 * 20
    assert result.updates > 100
    assert result.eval_return is not None
    assert 0 < result.wall_s < 30
    assert 0 < result.startup_s < 100
    assert result.weights == str(Path(config.out) / "weights.safetensors")
    policy = load_policy(result.weights)
    assert policy.metadata["env_steps"] == result.env_steps
    assert policy.act([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    assert statuses
    assert statuses[-1]["env_steps"] <= result.env_steps
    assert any(set(status["states"].values()) == {"running"} for status in statuses)
    assert statuses[-1]["replay_memory"] > 0
    assert not any(status["news"] for status in statuses)


def test_whole_run_leaves_the_documented_folder(whole_run: WholeRun) -> None:
    config, result, _ = whole_run
    folder = Path(config.out)
    files = {
        "result.json",
        "config.toml",
        "weights.safetensors",
        "best.safetensors",
        "metrics.jsonl",
        "log.txt",
        "tb",
        "checkpoint",
    }
    assert {path.name for path in folder.iterdir()} == files
    end = {"state": "ended", "reason": "env_steps", "error": "", **dataclasses.asdict(result)}
    assert json.loads((folder / "result.json").read_text()) == end
    assert {path.name for path in (folder / "tb").iterdir()} == {"learner", "actor_0", "actor_1", "evaluator"}
    assert load_run(str(folder / "config.toml")) == dataclasses.replace(config, out="")
    log = (folder / "log.txt").read_text()
    assert "Traceback" not in log
    assert "Warning" not in log
    assert "learner on cpu" in log, "what the learner has logged is not there"


def test_whole_run_writes_only_metrics_of_the_table(whole_run: WholeRun) -> None:
    config, _, _ = whole_run
    rows = [json.loads(line) for line in (Path(config.out) / "metrics.jsonl").read_text().splitlines()]
    assert {row["source"] for row in rows} == {"learner", "actor_0", "actor_1", "evaluator"}
    assert {name for row in rows for name in row} - {"source", "wall_s"} <= METRICS.keys()
    last = [row for row in rows if row["source"] == "learner"][-1]
    assert last["refused_messages"] == last["skipped_updates"] == 0


@pytest.mark.parametrize(  # of processes also: tests/manager/test_manager.py
    "engine", ["serial", *(pytest.param(it, marks=pytest.mark.slow) for it in ("local", "ray"))], indirect=True
)
def test_a_run_works_from_another_thread_and_loads_the_weights_of_one_before(
    whole_run: WholeRun, engine: str, tmp_path: Path
) -> None:
    """As in a notebook."""
    _, before, _ = whole_run
    ended: list[TrainResult] = []

    def work() -> None:
        ended.append(train(tiny_run(tmp_path, engine=engine, load=before.weights, stop__env_steps=500)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(100)
    (result,) = ended
    assert result.reason == "env_steps"
    assert load_policy(result.weights).metadata["env_steps"] == result.env_steps


@slow_on_ray
def test_a_user_s_own_algorithm_trains_and_goes_on(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    own = {"name": "expected_sarsa:ExpectedSarsa", "unroll_length": 5, "temperature": 0.5}
    train(tiny_run(tmp_path, engine=engine, stop__env_steps=500), algorithm=own)
    result = resume(tmp_path, {"env_steps": 1000})
    assert result.updates > 20
    policy = load_policy(result.weights, import_modules=True)
    assert vars(policy.config.algorithm)["temperature"] == 0.5
    assert policy.act([0.0, 0.0, 0.0, 0.0]) in (0, 1)


def missing_tensor(path: Path) -> None:
    network = load_policy(path).network
    tensors, metadata = weights.read(path)
    name = f"network.{next(iter(network.state_dict()))}"
    path.write_bytes(weights.pack({key: t for key, t in tensors.items() if key != name}, metadata))


@slow_on_ray
def test_weights_that_do_not_fit_are_refused_by_the_learner(whole_run: WholeRun, engine: str, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(Path(whole_run[1].weights).read_bytes())
    missing_tensor(path)
    with pytest.raises(ConfigError, match=r"tensor network\..* is missing") as raised:
        train(tiny_run(tmp_path / "run", engine=engine, load=str(path)))
    assert "\n" not in str(raised.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("engine", ["serial", *(pytest.param(it, marks=pytest.mark.slow) for it in ("local", "ray"))])
def test_a_device_that_is_not_there_is_refused_by_the_learner(engine: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"learner\.device: 'cuda' is not there") as raised:
        train(tiny_run(tmp_path, engine=engine, learner__device="cuda"))
    assert "\n" not in str(raised.value)


@slow_on_ray
def test_an_environment_that_raises_ends_the_run_with_its_traceback_and_the_actor_s_name(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_wrapper.py").write_text(
        "import gymnasium\n"
        "class Breaks(gymnasium.Wrapper):\n"
        "    steps = 0\n"
        "    def step(self, action):\n"
        "        self.steps += 1\n"
        "        if self.steps > 30:  # later than what is tried before the start\n"
        "            raise ZeroDivisionError('the environment broke')\n"
        "        return super().step(action)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    changes = {"environment__wrappers": ("broken_wrapper:Breaks",), "supervision__restarts": 0, "actors__count": 1}
    with pytest.raises(RunFailed) as raised:
        train(tiny_run(tmp_path / "run", engine=engine, **changes))
    assert "ZeroDivisionError: the environment broke" in str(raised.value)
    assert "in step" in str(raised.value)
    assert "actor_0" in str(raised.value)
    log = (tmp_path / "run" / "log.txt").read_text()
    assert log.count("raise ZeroDivisionError") == 1
    assert "failed: actor_0: ZeroDivisionError: the environment broke; " in log.splitlines()[-1]


def test_a_signal_after_the_engine_closed_does_no_harm(engine: str, tmp_path: Path) -> None:
    run = Run(tiny_run(engine=engine), CARTPOLE, tmp_path, "run", time.monotonic())
    with Signals() as signals:
        Manager(
            run, Callbacks(), signals, Record(tmp_path, "", Trackers(run.config.logging, {}, tmp_path))
        )._engine.close()
        os.kill(os.getpid(), signal.SIGINT)
    assert signals.received == [signal.SIGINT]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="processes are looked up in /proc")
@pytest.mark.parametrize("engine", ["local", "serial"])  # Ray's: tests/engines/ray/test_processes.py
def test_ctrl_c_in_a_terminal_stops_and_saves_and_leaves_nothing(engine: str, tmp_path: Path) -> None:
    """A terminal sends it to the whole group."""
    with program(tmp_path / "run", engine=engine, stop__env_steps=10**9) as run:
        run.wait_until_it_learns()
        run.send(signal.SIGINT, group=True)
        result = run.ended(within_s=15)
    assert result["reason"] == "SIGINT"
    assert load_policy(result["weights"]).metadata["env_steps"] == result["env_steps"]
