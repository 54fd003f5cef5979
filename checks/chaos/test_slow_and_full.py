"""A disk that is full, sides that are slow, a clock that jumps, and more actors than cores."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from apex_acer.config import RunConfig
from apex_acer.environments.check import check_environment
from apex_acer.manager.callbacks import Callbacks
from apex_acer.manager.manager import train
from apex_acer.storage.writers import Writers
from apex_acer.system.files import write
from tests.processes import processes
from tests.runs import tiny_run

# ── full ──


@contextlib.contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[None]:
    """No file of this process may become larger, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_limit_on_files_leaves_the_file_before_it_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    write(path, b"old")
    with files_of_at_most(10_000), pytest.raises(OSError, match="File too large") as raised:
        write(path, bytes(100_000))
    assert str(path) in str(raised.value)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.timeout(30)
def test_curves_that_find_no_room_are_an_error_and_no_hang(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/null")  # the rows have room
    writers = Writers(tmp_path)
    writers.write("learner", 0, 0.0, {"loss": 0.5})
    with files_of_at_most(100_000), pytest.raises(OSError, match="File too large") as raised:
        write_rows(writers, 2000)
    assert str(tmp_path) in str(raised.value)
    writers.close()


def write_rows(writers: Writers, count: int) -> None:
    for step in range(1, count + 1):
        writers.write("learner", step, 1.0, {"loss": 0.5, "entropy": 0.25})


# ── slow ──


class Slow(gymnasium.Wrapper[Any, Any, Any, Any]):
    def step(self, action: Any) -> Any:
        time.sleep(0.1)
        return super().step(action)


def slow(environment: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    return Slow(environment)


def pause(*_: object) -> None:
    """Called by the learner with each row, ten times a second."""
    time.sleep(0.5)


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("slowed", "waits", "works"),
    [
        ({"learner__callback": f"{__name__}:pause", "stop__env_steps": 600}, "actor_0", "learner"),
        ({"environment__wrappers": (f"{__name__}:slow",), "stop__env_steps": 400}, "learner", "actor_0"),
    ],
    ids=["learner", "actors"],
)
def test_who_is_far_faster_than_the_other_waits(slowed: dict[str, Any], waits: str, works: str, tmp_path: Path) -> None:
    result = train(tiny_run(tmp_path, engine="local", **slowed))
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]

    def share(source: str) -> float:
        shares = [row["time_waiting"] for row in rows if row["source"] == source and "time_waiting" in row]
        return float(statistics.median(shares))

    assert result.reason == "env_steps"
    assert share(waits) > 0.8
    assert share(works) < 0.2
    assert not [row for row in rows if row.get("refused_messages")]


# ── a clock that jumps ──


class Clock:
    """Stands in for the wall clock."""

    def __init__(self) -> None:
        self._real = time.time
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return self._real() + self.ahead_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "time", clock)
    return clock


def test_a_clock_that_jumps_changes_no_duration(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward while it starts, back while it learns."""

    def check(config: RunConfig) -> Any:
        clock.ahead_s = 3600.0
        return check_environment(config)

    def jump(status: dict[str, Any]) -> None:
        clock.ahead_s = -3600.0 if status["env_steps"] else 3600.0

    monkeypatch.setattr("apex_acer.manager.preparation.check_environment", check)
    began = time.monotonic()
    result = train(tiny_run(tmp_path, stop__env_steps=30_000, stop__minutes=1 / 60), Callbacks(on_status=jump))
    took = time.monotonic() - began
    assert clock.ahead_s == -3600.0
    assert result.reason == "minutes"
    assert 1 <= result.wall_s < took
    assert 0 < result.startup_s < took
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    times = [row["wall_s"] for row in rows if row["source"] == "learner"]
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] < took


# ── many ──


def held_mb() -> float:
    """Memory of the processes of this process's run, shared pages counted once."""
    kilobytes = 0
    for pid in processes(os.getpid()).values():
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kilobytes / 1024


@pytest.mark.chaos
@pytest.mark.timeout(1200)
def test_64_actors_on_few_cores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tiny_run(
        tmp_path,
        engine="local",
        actors__count=64,
        actors__environments=1,
        evaluation__every=5000,
        stop__env_steps=50_000,
    )
    began, seen = time.monotonic(), dict[str, float]()

    def look(status: dict[str, Any]) -> None:
        if not seen and sum(name.startswith("actor") for name in status["rows"]) == 64:
            seen.update(seconds=time.monotonic() - began, megabytes=held_mb())

    result = train(config, Callbacks(on_status=look))
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if row["source"] == "learner"][-1]
    with capsys.disabled():
        print(
            f"\n64 actors on {os.cpu_count()} cores: all heard of after {seen['seconds']:.0f} s, "
            f"{seen['megabytes']:.0f} MB; {result.env_steps} env steps in {result.wall_s:.0f} s"
        )
    assert result.reason == "env_steps"
    assert {row["source"] for row in rows} >= {f"actor_{index}" for index in range(64)}
    assert last["refused_messages"] == 0
