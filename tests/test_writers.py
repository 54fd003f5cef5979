from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from apex_acer.writers import Writers

NAN, INFINITE = float("nan"), float("inf")


def lines(folder: Path) -> list[dict[str, object]]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def scalars(folder: Path, source: str) -> dict[str, list[tuple[int, float]]]:
    board = EventAccumulator(str(folder / "tb" / source))
    board.Reload()
    return {tag: [(event.step, event.value) for event in board.Scalars(tag)] for tag in board.Tags()["scalars"]}


def test_rows_are_lines_and_boards(tmp_path: Path) -> None:
    writers = Writers(tmp_path)
    writers.write("learner", 100, 1.23456, {"loss": 0.5, "updates": 3})
    writers.write("actor_0", 100, 1.5, {"episode_return": 20.0})
    writers.write("learner", 200, 2.0, {"loss": 0.25, "updates": 6})
    writers.close()
    assert lines(tmp_path) == [
        {"source": "learner", "env_steps": 100, "wall_s": 1.235, "loss": 0.5, "updates": 3},
        {"source": "actor_0", "env_steps": 100, "wall_s": 1.5, "episode_return": 20.0},
        {"source": "learner", "env_steps": 200, "wall_s": 2.0, "loss": 0.25, "updates": 6},
    ]
    assert sorted(path.name for path in (tmp_path / "tb").iterdir()) == ["actor_0", "learner"]
    assert scalars(tmp_path, "learner") == {"loss": [(100, 0.5), (200, 0.25)], "updates": [(100, 3.0), (200, 6.0)]}
    assert scalars(tmp_path, "actor_0") == {"episode_return": [(100, 20.0)]}


def test_lines_are_there_before_closing(tmp_path: Path) -> None:
    writers = Writers(tmp_path)
    writers.write("evaluator", 7, 0.0, {"eval_return": 1.0})
    assert len(lines(tmp_path)) == 1
    writers.close()


def test_a_second_process_appends(tmp_path: Path) -> None:
    for env_steps in (1, 2):
        writers = Writers(tmp_path)
        writers.write("learner", env_steps, 0.0, {"loss": 1.0})
        writers.close()
    assert [line["env_steps"] for line in lines(tmp_path)] == [1, 2]


@pytest.mark.parametrize("value", [NAN, INFINITE, -INFINITE])
def test_numbers_that_are_not_finite_are_null_in_json(tmp_path: Path, value: float) -> None:
    writers = Writers(tmp_path)
    writers.write("learner", 1, 0.0, {"loss": value, "value": 2.0})
    writers.close()
    assert lines(tmp_path) == [{"source": "learner", "env_steps": 1, "wall_s": 0.0, "loss": None, "value": 2.0}]
    found = scalars(tmp_path, "learner")
    assert found["value"] == [(1, 2.0)]
    ((_, shown),) = found["loss"]
    assert shown == value or (math.isnan(value) and math.isnan(shown))
