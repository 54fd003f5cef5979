"""What a program that trained has in its hands: the policy, everybody's log, figures."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from apex_acer.manager.result import TrainResult
from tests.conftest import config_error
from tests.continuous import rows_of


@pytest.fixture
def result(finished_run: Path, tmp_path: Path) -> TrainResult:
    """Of a copy of the finished run."""
    end = json.loads((finished_run / "result.json").read_text())
    fields = {field.name: end[field.name] for field in dataclasses.fields(TrainResult)}
    shutil.copytree(finished_run, tmp_path / "run")
    return TrainResult(**{**fields, "folder": str(tmp_path / "run")})


def test_it_prints_in_a_line() -> None:
    result = TrainResult("at_return", 6308, 330, 1.23456, 1.8, 499.876, "/runs/mine/weights.safetensors", "/runs/mine")
    line = "reason='at_return', env_steps=6308, updates=330, wall_s=1.2, eval_return=499.88, folder='/runs/mine'"
    assert str(result) == repr(result) == f"TrainResult({line})"
    assert "eval_return=None" in repr(dataclasses.replace(result, eval_return=None))


def test_logs_are_the_rows_by_metric(result: TrainResult) -> None:
    logs = {"learner": result.learner_log, "evaluator": result.evaluator_log}
    logs |= {f"actor_{index}": log for index, log in enumerate(result.actor_logs)}
    assert logs.keys() == {"learner", "evaluator", "actor_0", "actor_1"}
    for source, log in logs.items():
        written = rows_of(Path(result.folder), source)
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


def test_who_wrote_no_rows_has_an_empty_log(result: TrainResult) -> None:
    path = Path(result.folder) / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not ('"actor_0"' in line or '"evaluator"' in line)))
    nothing, log = result.actor_logs  # an actor keeps its place
    assert not nothing
    assert len(log["env_steps"]) > 0
    assert [len(values) for values in nothing.curve("episode_return")] == [0, 0]
    assert result.evaluator_log == {}
    assert [len(values) for values in result.evaluator_log.curve("eval_return")] == [0, 0]


def test_a_run_that_could_not_save_has_logs_and_no_policy(result: TrainResult) -> None:
    unsaved = dataclasses.replace(result, reason="SIGINT", weights="")
    message = config_error(lambda: unsaved.policy)
    assert message == f"weights: SIGINT ended the run in '{result.folder}' before they were written"
    assert len(unsaved.learner_log["env_steps"]) > 0
