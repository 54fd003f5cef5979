"""What a caller hears of a run: each row once, evaluations, the end; and what becomes of a callback that raises or hangs."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from apex_acer.actor.policy import load_policy
from apex_acer.config import ConfigError, StopConfig
from apex_acer.manager.callbacks import Callbacks
from apex_acer.manager.manager import RunFailed, resume, train
from apex_acer.storage.folder import held
from apex_acer.storage.history import RowReader
from apex_acer.system import files
from tests.conftest import config_error
from tests.runs import tiny_run

Rows = list[dict[str, Any]]


def test_a_resumed_run_tells_only_its_own_rows(tmp_path: Path) -> None:
    rows: Rows = []
    train(tiny_run(tmp_path), Callbacks(on_rows=rows.extend))
    before = len(rows)
    resume(tmp_path, {"env_steps": 3000}, Callbacks(on_rows=rows.extend))
    assert len(rows) > before
    assert rows == [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]


def test_a_status_is_heard_of_a_run_that_ends_before_the_second_question(tmp_path: Path) -> None:
    statuses: Rows = []
    config = tiny_run(tmp_path, stop__env_steps=200, logging__every_seconds=60.0)
    train(config, Callbacks(on_status=statuses.append))
    assert statuses[0]["rows"] == {}


@pytest.mark.parametrize("given", [print, 100, {"on_status": print}])
def test_what_is_no_callbacks_is_refused_before_a_folder_is_made(tmp_path: Path, given: Any) -> None:
    message = config_error(lambda: train(tiny_run(tmp_path / "run"), given))
    assert message.startswith("callbacks: ")
    assert message.endswith(" is not allowed; give Callbacks(on_status=…)")
    assert not (tmp_path / "run").exists()


# ── a callback that raises ──


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("on_status", SystemExit(3)),
        ("on_rows", ConfigError("mine")),
        ("on_evaluation", ZeroDivisionError("mine")),
        ("on_rows", KeyboardInterrupt("mine")),
        ("on_rows", asyncio.CancelledError("mine")),
    ],
)
def test_what_a_callback_raises_ends_the_run_saved(tmp_path: Path, name: str, error: BaseException) -> None:
    heard: list[Any] = []

    def fail(it: Any) -> None:
        heard.append(it)
        if len(heard) == 2:
            raise error

    config = tiny_run(tmp_path, evaluation__every=200, stop__env_steps=10**9)
    with pytest.raises(type(error)) as raised:
        train(config, Callbacks(**{name: fail}))
    assert raised.value is error
    assert len(heard) == 2
    assert "env_steps" in load_policy(tmp_path / "weights.safetensors").metadata
    assert (tmp_path / "checkpoint").is_dir()
    assert "saved before leaving" in (tmp_path / "log.txt").read_text()
    end = json.loads((tmp_path / "result.json").read_text())
    assert (end["state"], end["reason"]) == ("failed", "")
    assert end["error"].endswith("mine") or end["error"] == "SystemExit: 3"


def test_what_the_last_callback_raises_comes_after_all_was_saved(tmp_path: Path) -> None:
    def fail(heard: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(tiny_run(tmp_path), Callbacks(on_stop=fail))
    assert load_policy(tmp_path / "weights.safetensors").metadata["env_steps"] >= 1000


@pytest.mark.parametrize(("engine", "raised"), [("serial", "ValueError('mine')"), ("local", "SystemExit(0)")])
def test_what_the_learner_s_callback_raises_ends_the_run_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, raised: str
) -> None:
    """In the learner's process, whose exceptions end in a traceback."""
    (tmp_path / f"leaving_{engine}.py").write_text(f"def leave(steps, row, network):\n    raise {raised}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, f"leaving_{engine}", raising=False)
    config = tiny_run(tmp_path / "run", engine=engine, learner__callback=f"leaving_{engine}:leave", actors__count=1)
    with pytest.raises(RunFailed, match=raised.partition("(")[0]):
        train(dataclasses.replace(config, stop=StopConfig(env_steps=10**9)))
    assert "env_steps" in load_policy(tmp_path / "run" / "weights.safetensors").metadata
    assert (tmp_path / "run" / "checkpoint").is_dir()


# ── a callback that is slow ──


def test_a_second_signal_ends_a_callback_that_hangs(tmp_path: Path) -> None:
    """The first waits for it, as the run's end is then the usual one."""
    began = threading.Event()
    ends: list[Any] = []

    def hang(status: Any) -> None:
        began.set()
        time.sleep(60)

    def press_twice() -> None:
        assert began.wait(60)
        for _ in range(2):
            time.sleep(0.3)  # the callback sleeps by then
            os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=press_twice)
    pressing.start()
    at = time.monotonic()
    result = train(tiny_run(tmp_path, stop__env_steps=10**9), Callbacks(on_status=hang, on_stop=ends.append))
    pressing.join()
    assert time.monotonic() - at < 30
    assert (result.reason, result.weights) == ("SIGINT", "")
    assert ends == [result]


# ── reading rows ──


Read = Callable[[], list[int]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


@pytest.fixture
def read(path: Path) -> Iterator[Read]:
    with contextlib.closing(RowReader(path.parent)) as reader:
        yield lambda: [row["n"] for row in reader.read()]


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def row(n: int) -> str:
    return json.dumps({"n": n, "source": "learner", "env_steps": n, "wall_s": 0.5}) + "\n"


def test_rows_come_once_they_are_whole(path: Path, read: Read) -> None:
    """A damaged line, as a power cut may leave one, is left out."""
    assert read() == []
    append(path, row(1) + "\0\0\n" + row(2) + row(3)[:9])
    assert read() == [1, 2]
    assert read() == []
    append(path, row(3)[9:-1])
    assert read() == []
    append(path, "\n" + row(4))
    assert read() == [3, 4]


def test_rows_come_from_a_folder_that_was_renamed(tmp_path: Path) -> None:
    """Although another run has begun at its place, and a learner that was restarted has written its file anew."""
    at, moved = tmp_path / "run", tmp_path / "moved"
    at.mkdir()
    append(at / "metrics.jsonl", row(1))
    with held(at, "run"), contextlib.closing(RowReader(at)) as reader:
        assert [row["n"] for row in reader.read()] == [1]
        at.rename(moved)
        at.mkdir()
        append(at / "metrics.jsonl", row(9))
        files.write(moved / "metrics.jsonl", (row(1) + row(2)).encode())
        assert [row["n"] for row in reader.read()] == [2]


@pytest.mark.parametrize("kept", [0, 2, 3, 4])
@pytest.mark.parametrize("num_new", [0, 1, 5])
def test_a_file_written_anew_is_read_from_where_it_differs(path: Path, read: Read, kept: int, num_new: int) -> None:
    """Also rows that were never read, and a torn one that its writer left."""
    before = [row(n) for n in range(3)]
    append(path, "".join(before))
    assert read() == [0, 1, 2]
    append(path, row(3) + row(4)[:9])
    new = list(range(10, 10 + num_new))
    files.write(path, "".join([*before, row(3)][:kept] + [row(n) for n in new]).encode())
    assert read() == [3, *new]
    append(path, row(99))
    assert read() == [99]
