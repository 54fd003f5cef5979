"""What every engine does alike: whole runs, their ends and what they leave behind."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from apex_acer.actor.policy import load_policy
from apex_acer.config import RunConfig
from apex_acer.config.runfile import load_run
from apex_acer.engines import ENGINES
from apex_acer.engines.engine import Run
from apex_acer.manager.callbacks import Callbacks, Evaluation
from apex_acer.manager.manager import Manager, RunFailed, resume, train
from apex_acer.manager.record import Record
from apex_acer.manager.result import TrainResult
from apex_acer.manager.trackers import Trackers
from apex_acer.networks import weights
from apex_acer.protocol.metrics import METRICS
from apex_acer.system.signals import Signals
from tests import ROOT
from tests.conftest import config_error
from tests.runs import CARTPOLE, tiny_run

Rows = list[dict[str, Any]]


def slow_on_ray(*fast: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("engine", [*fast, pytest.param("ray", marks=pytest.mark.slow)], indirect=True)


@pytest.fixture(scope="module", params=sorted(ENGINES))
def engine(request: pytest.FixtureRequest) -> str:
    """The name of each engine; Ray is started once for all."""
    if request.param == "ray":
        request.getfixturevalue("ray_here")
    return str(request.param)


class WholeRun(NamedTuple):
    """A run, and what its callbacks heard."""

    config: RunConfig
    result: TrainResult
    statuses: Rows
    rows: Rows
    evaluations: list[Evaluation]
    ends: list[TrainResult]
    seconds: float
    """How long `train` took."""


@pytest.fixture(scope="module")
def whole_run(engine: str, tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    """Every role, for a moment; on Ray for more, because a busy machine may start the evaluator seconds after the actors."""
    out = tmp_path_factory.mktemp(engine)
    config = tiny_run(out, engine=engine, evaluation__every=500, stop__env_steps=15_000 if engine == "ray" else 4000)
    statuses: Rows = []
    rows: Rows = []
    evaluations: list[Evaluation] = []
    ends: list[TrainResult] = []
    begun = time.monotonic()
    result = train(config, Callbacks(statuses.append, rows.extend, evaluations.append, ends.append))
    return WholeRun(config, result, statuses, rows, evaluations, ends, time.monotonic() - begun)


def rows_on_disk(run: WholeRun) -> Rows:
    return [json.loads(line) for line in (Path(run.config.out) / "metrics.jsonl").read_text().splitlines()]


def test_whole_run_returns_what_happened(whole_run: WholeRun) -> None:
    config, result, statuses, *_, seconds = whole_run
    assert (result.reason, result.exit_code) == ("env_steps", 0)
    assert 0 <= result.env_steps - config.stop.env_steps < 5 * 20
    assert result.updates > 100
    assert result.eval_return is not None
    assert 0 < result.wall_s < seconds
    assert 0 < result.startup_s < 100
    assert result.weights == str(Path(config.out) / "weights.safetensors")
    assert result.policy.metadata["env_steps"] == result.env_steps
    assert result.policy.act([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    assert result.policy is result.policy  # a recurrent one remembers
    said = json.loads(json.dumps(dataclasses.asdict(result)))
    assert TrainResult(**said) == result
    assert "policy" not in said
    assert statuses[-1]["env_steps"] <= result.env_steps
    assert any(set(status["states"].values()) == {"running"} for status in statuses)
    assert statuses[-1]["replay_memory"] > 0
    assert not any(status["news"] for status in statuses)


def test_whole_run_leaves_the_documented_folder(whole_run: WholeRun) -> None:
    config, result, *_ = whole_run
    folder = Path(config.out)
    files = {"result.json", "config.toml", "weights.safetensors", "best.safetensors", "metrics.jsonl", "log.txt"}
    assert {path.name for path in folder.iterdir()} == {*files, "tb", "checkpoint"}
    end = {"state": "ended", "reason": "env_steps", "error": "", **dataclasses.asdict(result)}
    assert json.loads((folder / "result.json").read_text()) == end
    assert {path.name for path in (folder / "tb").iterdir()} == {"learner", "actor_0", "actor_1", "evaluator"}
    assert load_run(str(folder / "config.toml")) == dataclasses.replace(config, out="")
    log = (folder / "log.txt").read_text()
    assert "Traceback" not in log
    assert "Warning" not in log
    assert "learner on cpu" in log, "what the learner has logged is not there"
    rows = rows_on_disk(whole_run)
    assert {row["source"] for row in rows} == {"learner", "actor_0", "actor_1", "evaluator"}
    assert {name for row in rows for name in row} - {"source", "wall_s"} <= METRICS.keys()
    last = [row for row in rows if row["source"] == "learner"][-1]
    assert last["refused_messages"] == last["skipped_updates"] == 0


def test_whole_run_s_rows_evaluations_and_end_are_told_once(whole_run: WholeRun) -> None:
    assert whole_run.ends == [whole_run.result]
    assert whole_run.rows == rows_on_disk(whole_run)
    scores = [row for row in whole_run.rows if row["source"] == "evaluator"]
    assert scores
    for score, heard in zip(scores, whole_run.evaluations, strict=True):
        assert (heard.env_steps, heard.mean) == (score["eval_env_steps"], score["eval_return"])
        assert heard.min <= heard.mean <= heard.max
        assert (heard.std, heard.length) == (score["eval_return_std"], score["eval_length"])


def test_a_user_s_own_algorithm_trains_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs/examples")
    own = {"name": "expected_sarsa:ExpectedSarsa", "unroll_length": 5, "temperature": 0.5}
    train(tiny_run(tmp_path, stop__env_steps=300), algorithm=own)
    result = resume(tmp_path, {"env_steps": 600})
    assert result.updates > 10
    monkeypatch.delitem(sys.modules, "expected_sarsa")  # as where only the run's own processes have imported it
    policy = result.policy
    assert vars(policy.config.algorithm)["temperature"] == 0.5
    assert policy.act([0.0, 0.0, 0.0, 0.0]) in (0, 1)


@slow_on_ray("local")
def test_weights_that_do_not_fit_are_refused_by_the_learner(whole_run: WholeRun, engine: str, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    tensors, metadata = weights.read(whole_run.result.weights)
    tensors.pop(next(name for name in tensors if name.startswith("network.")))
    path.write_bytes(weights.pack(tensors, metadata))
    message = config_error(lambda: train(tiny_run(tmp_path / "run", engine=engine, load=str(path))))
    assert re.search(r"tensor network\..* is missing", message)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused_by_the_learner(tmp_path: Path) -> None:
    message = config_error(lambda: train(tiny_run(tmp_path, learner__device="cuda")))
    assert message.startswith("learner.device: 'cuda' is not there")


@slow_on_ray("serial", "local")
def test_an_environment_that_raises_ends_the_run_with_its_traceback_and_the_actor_s_name(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_wrapper.py").write_text(
        "import gymnasium\n"
        "class Breaks(gymnasium.Wrapper):\n"
        "    steps = 0\n"
        "    def step(self, action):\n"
        "        self.steps += 1\n"
        "        if self.steps > 100:  # later than what is tried before the start\n"
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
    assert load_policy(tmp_path / "run/weights.safetensors").metadata["env_steps"] > 0, "what was learned is lost"
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
