"""The soak's judgement: what grows is found, what wavers is not."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from checks.chaos.soak import Sample, draw, judge, look
from tests.processes import processes

SECONDS = np.arange(600.0)


def series(leak: float = 0.0, files: np.ndarray | int = 11) -> list[Sample]:
    """Ten minutes of a process that warms up for three, wavers by some MB and leaks `leak` MB a minute."""
    noise = np.random.default_rng(0).normal(0, 3, len(SECONDS)) + 20 * (SECONDS % 60 == 0)
    megabytes = 200 + 100 * np.minimum(SECONDS / 180, 1) + leak * SECONDS / 60 + noise
    return list(zip(SECONDS.tolist(), megabytes.tolist(), np.broadcast_to(files, SECONDS.shape).tolist(), strict=True))


def test_memory_that_grows_and_files_that_stay_open_are_found() -> None:
    for leak, flat in ((0.0, True), (-5.0, True), (1.5, False)):
        judged = judge(series(leak))
        assert judged["flat"] == flat, leak
        assert judged["MB/min"] == pytest.approx(leak, abs=0.3)
        assert judged["from"] <= judged["MB/min"] <= judged["to"]
    for_a_moment, early, late = SECONDS % 45 == 0, SECONDS > 60, SECONDS > 500
    for opened, flat in ((for_a_moment, True), (early, True), (late, False), (SECONDS // 100, False)):
        assert judge(series(files=(11 + opened).astype(int)))["flat"] == flat


def test_a_process_is_looked_at() -> None:
    seen: list[Sample] = []
    look(seen, 1.0, os.getpid())
    with Path(os.devnull).open():
        look(seen, 2.0, os.getpid())
    (_, megabytes, files), (_, _, more) = seen
    assert megabytes > 20
    assert more == files + 1
    look(seen, 3.0, 2**22 + 1)  # nobody
    assert len(seen) == 2
    assert processes(os.getpid())["manager"] == os.getpid()


def test_figures_are_drawn(tmp_path: Path) -> None:
    draw(tmp_path, {"learner_0 (5)": series(), "actor_0 (6)": series(1.0)[:100]})
    assert {path.name for path in tmp_path.iterdir()} == {"memory.png", "files.png"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.iterdir())
