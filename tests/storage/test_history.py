"""Rows of metrics: read as they are on disk, also while a run trains, and as arrays."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apex_acer.storage.history import History, is_number, read_rows


def row(source: str = "learner", env_steps: float = 1, wall_s: float = 0.5, **metrics: Any) -> dict[str, Any]:
    return {"source": source, "env_steps": env_steps, "wall_s": wall_s, **metrics}


def test_a_real_run_is_read_whole(finished_run: Path) -> None:
    path = finished_run / "metrics.jsonl"
    rows = read_rows(path)
    assert rows == [json.loads(line) for line in path.read_text().splitlines()]
    history = History(rows)
    assert [history.sources(kind) for kind in ("learner", "evaluator", "actor")] == [
        ["learner"],
        ["evaluator"],
        ["actor_0", "actor_1"],
    ]
    x, y = history.log("learner").curve("entropy")
    assert len(x) == len(y) > 2
    assert (np.diff(x) >= 0).all()
    assert history.log("learner").curve("env_steps")[0][-1] >= 1000
    assert ((y > 0) & (y <= np.log(2) + 1e-6)).all()


@pytest.mark.parametrize(
    "foreign",
    [{}, [], None, {"source": 1}, {"source": "learner"}, row(env_steps=float("nan")), row(wall_s=10**400)],
)
@pytest.mark.parametrize("torn", ["", '{"source": "learner", "env_st', "\udcff{", "[" * 9999])
def test_a_torn_last_line_and_lines_that_are_no_rows_are_left_out(foreign: Any, torn: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f"{json.dumps(foreign)}\n\n{json.dumps(row())}\n{torn}", errors="surrogateescape")
    assert read_rows(path) == [row()]


def test_reading_from_the_midst_of_a_line_begins_with_the_next(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f"{json.dumps(row(env_steps=i))}\n" for i in range(10)))
    length = len(json.dumps(row(env_steps=0))) + 1
    assert [found["env_steps"] for found in read_rows(path, 7 * length)] == [7, 8, 9]
    assert [found["env_steps"] for found in read_rows(path, 7 * length + 1)] == [8, 9]
    assert read_rows(path, 1000 * length) == []


def test_what_is_no_file_has_no_rows_and_does_not_hang(tmp_path: Path) -> None:
    assert read_rows(tmp_path / "absent") == []
    assert read_rows(tmp_path) == []
    os.mkfifo(tmp_path / "pipe")
    assert read_rows(tmp_path / "pipe") == []


def test_a_curve_has_the_rows_with_both_values() -> None:
    history = History(
        [row(env_steps=1, loss=1.0), row(env_steps=2, loss=None), row(env_steps=3), row(env_steps=4, loss=2)]
    )
    x, y = history.log("learner").curve("loss")
    assert (x.tolist(), y.tolist()) == ([1, 4], [1, 2])
    assert [len(values) for values in history.log("learner").curve("absent")] == [0, 0]
    assert [len(values) for values in history.log("absent").curve("loss")] == [0, 0]


def test_actors_are_in_the_order_of_their_numbers() -> None:
    names = [f"actor_{index}" for index in (10, 2, 0, 1)]
    assert History([row(name) for name in [*names, "learner"]]).sources("actor") == [
        "actor_0",
        "actor_1",
        "actor_2",
        "actor_10",
    ]


@pytest.mark.parametrize(
    ("times", "rates"),
    [
        ([(100, 0.5), (100, 0.5), (400, 1.5)], [200, 300]),
        ([(100, 1.0), (200, 2.0), (300, 3.0), (364, 3.016)], [100] * 3),  # a run's last row is written when it ends
    ],
)
def test_no_rate_is_made_of_no_time_or_too_short_a_time(times: list[tuple[int, float]], rates: list[float]) -> None:
    history = History([row(env_steps=steps, wall_s=wall_s) for steps, wall_s in times])
    assert history.log("learner").curve("env_steps_per_s", over="wall_s")[1].tolist() == rates


def test_numbers_are_told_from_what_else_json_holds() -> None:
    assert all(map(is_number, (0, -1.5, 10**300)))
    assert not any(map(is_number, (None, "1", [], float("nan"), float("inf"), 10**400)))
