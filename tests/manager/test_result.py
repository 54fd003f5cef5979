"""What a program that trained has in its hands: the policy, everybody's log, figures."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apex_acer.manager.callbacks import Callbacks
from apex_acer.manager.manager import resume, train
from apex_acer.manager.result import TrainResult
from apex_acer.system.signals import SAME_SIGNAL_S
from tests import ROOT
from tests.conftest import config_error
from tests.runs import tiny_run


@pytest.fixture(scope="module", params=["serial", pytest.param("local", marks=pytest.mark.slow)])
def result(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    folder = tmp_path_factory.mktemp(request.param)
    changes = {"evaluation__every": 250, "logging__every_seconds": 0.02, "stop__env_steps": 2000}
    return train(tiny_run(folder, engine=request.param, **changes))


def rows(result: TrainResult, source: str) -> list[dict[str, Any]]:
    lines = (Path(result.folder) / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["source"] == source]


def test_it_prints_in_a_line() -> None:
    result = TrainResult("at_return", 6308, 330, 1.23456, 1.8, 499.876, "/runs/mine/weights.safetensors", "/runs/mine")
    line = "reason='at_return', env_steps=6308, updates=330, wall_s=1.2, eval_return=499.88, folder='/runs/mine'"
    assert str(result) == repr(result) == f"TrainResult({line})"
    assert "eval_return=None" in repr(dataclasses.replace(result, eval_return=None))


def test_the_policy_is_the_one_trained(result: TrainResult) -> None:
    assert result.policy.metadata["env_steps"] == result.env_steps
    assert result.policy.act([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    assert result.policy is result.policy  # a recurrent one remembers


def test_logs_are_the_rows_by_metric(result: TrainResult) -> None:
    logs = {"learner": result.learner_log, "evaluator": result.evaluator_log}
    logs |= {f"actor_{index}": log for index, log in enumerate(result.actor_logs)}
    assert logs.keys() == {"learner", "evaluator", "actor_0", "actor_1"}
    for source, log in logs.items():
        written = rows(result, source)
        names = {name for row in written for name in row}
        assert log.keys() | {"source"} == names | ({"env_steps_per_s"} if source == "learner" else set())
        for name in log.keys() & {"env_steps", "wall_s", "entropy", "eval_return", "episode_return"}:
            expected = [np.nan if row.get(name) is None else row[name] for row in written]
            np.testing.assert_array_equal(log[name], expected, err_msg=f"{source} {name}")
        assert {(array.dtype.name, len(array)) for array in log.values()} == {("float64", len(written))}
    assert result.learner_log["env_steps"][-1] == result.env_steps
    assert result.evaluator_log["eval_return"][-1] == result.eval_return


@pytest.mark.slow
def test_figures_go_where_the_command_puts_them_or_where_one_says(result: TrainResult, tmp_path: Path) -> None:
    paths = result.plot()
    assert Path(result.folder) / "plots" / "returns.png" in paths
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    assert {path.parent for path in result.plot(tmp_path)} == {tmp_path}


def test_an_actor_without_rows_keeps_its_place(tmp_path: Path) -> None:
    result = train(tiny_run(tmp_path, logging__every_seconds=0.001, stop__env_steps=300))
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(line for line in path.read_text().splitlines(True) if '"actor_0"' not in line))
    nothing, log = result.actor_logs
    assert not nothing
    assert len(log["env_steps"]) > 0
    assert [len(values) for values in nothing.curve("episode_return")] == [0, 0]


def test_without_evaluations_their_log_is_empty(tmp_path: Path) -> None:
    result = train(tiny_run(tmp_path))
    assert result.evaluator_log == {}
    assert [len(values) for values in result.evaluator_log.curve("eval_return")] == [0, 0]


def test_after_a_resume_logs_are_those_of_the_whole_run(tmp_path: Path) -> None:
    first = train(tiny_run(tmp_path, stop__env_steps=500))
    second = resume(tmp_path, {"env_steps": 1000})
    assert second.folder == first.folder == str(tmp_path)
    steps = second.learner_log["env_steps"]
    assert (steps[0], steps[-1]) == (rows(second, "learner")[0]["env_steps"], second.env_steps)
    assert second.policy.metadata["env_steps"] == second.env_steps


@pytest.mark.slow
def test_a_run_that_could_not_save_has_logs_and_no_policy(tmp_path: Path) -> None:
    heard: dict[str, Any] = {}

    def interrupt_twice(status: dict[str, Any]) -> None:
        heard.update(status)
        if "evaluator" in status["rows"]:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(2 * SAME_SIGNAL_S)

    changes = {"evaluation__every": 200, "logging__every_seconds": 0.02, "stop__env_steps": 10**9}
    result = train(tiny_run(tmp_path, engine="local", **changes), Callbacks(on_status=interrupt_twice))
    assert (result.env_steps, result.wall_s) == (heard["env_steps"], heard["wall_s"])
    assert result.eval_return == heard["rows"]["evaluator"]["eval_return"]
    assert 0.1 < result.startup_s < 90
    assert (result.weights, result.folder) == ("", str(tmp_path))
    message = config_error(lambda: result.policy)
    assert message == f"weights: SIGINT ended the run in '{tmp_path}' before they were written"
    assert len(result.learner_log["env_steps"]) > 0
    assert result.plot()


@pytest.mark.slow
def test_a_torso_of_one_s_own_need_not_be_imported_before(tmp_path: Path) -> None:
    """Only the run's own processes have imported it."""
    (tmp_path / "wide.py").write_text("from residual import Residual as Wide\n")
    examples = ROOT / "docs" / "examples"
    program = f"""
import sys
sys.path += [{str(tmp_path)!r}, {str(examples)!r}]
from tests.runs import tiny_run
from apex_acer import train
result = train(tiny_run({str(tmp_path / "run")!r}, engine="local", network__torso="wide:Wide"))
assert "wide" not in sys.modules
print(type(result.policy.network.torso).__name__)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (0, "Residual\n"), done.stderr


def test_what_travels_from_the_learner_s_process_is_its_fields(result: TrainResult) -> None:
    assert result.policy is not None
    said = json.loads(json.dumps(dataclasses.asdict(result)))
    assert TrainResult(**said) == result
    assert "policy" not in said
