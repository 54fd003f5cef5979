"""A disk that is full, sides that are slow, a clock that jumps, and more actors than cores."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from apex_acer.actor.actor import Actor
from apex_acer.actor.policy import load_policy
from apex_acer.config import EnvironmentConfig
from apex_acer.engines.local.transport import DealerLink, InboxServer
from apex_acer.environments.check import check_environment
from apex_acer.learner.learner import Learner
from apex_acer.manager.callbacks import Callbacks
from apex_acer.manager.manager import RunFailed, train
from apex_acer.protocol.messages import Link, Message, Peer, Reply
from apex_acer.storage.writers import Writers
from apex_acer.system.files import write
from tests.processes import processes
from tests.runs import RUN_ID, MakeLearner, Speaker, known_speakers, tiny_run

# ── full ──


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("this user may not mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Leaves no byte free."""
    with contextlib.suppress(OSError), (folder / "filler").open("ab", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


def test_a_full_disk_leaves_the_file_before_it_and_is_named(small_disk: Path) -> None:
    path = small_disk / "weights.safetensors"
    write(path, b"old" * 1000)
    fill(small_disk)
    with pytest.raises(OSError, match="No space left on device") as raised:
        write(path, bytes(100_000))
    assert str(path) in str(raised.value)
    assert path.read_bytes() == b"old" * 1000
    assert {file.name for file in small_disk.iterdir()} == {path.name, "filler"}


def test_a_limit_on_files_leaves_the_file_before_it_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    write(path, b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(OSError, match="File too large") as raised:
            write(path, bytes(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(path) in str(raised.value)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.timeout(30)
def test_curves_that_find_no_room_are_an_error_and_no_hang(small_disk: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "tb").symlink_to(small_disk)  # the rows still have room
    writers = Writers(run)
    writers.write("learner", 0, 0.0, {"loss": 0.5})
    fill(small_disk)
    with pytest.raises(OSError, match="No space left on device") as raised:
        write_rows(writers, 2000)
    assert str(run) in str(raised.value)
    (small_disk / "filler").unlink()
    writers.close()


def write_rows(writers: Writers, count: int) -> None:
    for step in range(1, count + 1):
        writers.write("learner", step, 1.0, {"loss": 0.5, "entropy": 0.25})


@pytest.mark.timeout(200)
def test_a_run_whose_disk_fills_up_ends_with_the_reason_and_whole_files(small_disk: Path) -> None:
    out = small_disk / "run"
    config = tiny_run(out, engine="local", actors__count=1, checkpoint__every=500, stop__env_steps=10**9)

    def fill_once_saved(status: dict[str, Any]) -> None:
        if (out / "weights.safetensors").exists():
            fill(small_disk)

    with pytest.raises(RunFailed) as raised:
        train(config, Callbacks(on_status=fill_once_saved))
    assert "No space left on device" in str(raised.value)
    assert str(out) in str(raised.value)
    assert load_policy(out / "weights.safetensors").metadata["env_steps"] >= 500
    assert [path for path in out.rglob("*") if path.name.endswith(".part")] == []


# ── slow ──


class CountingLink(Link):
    """Keeps what an actor sent and what was answered."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._steps: dict[int, int] = {}
        self.answered_steps = 0
        self.unanswered = self.most_unanswered = 0

    def send(self, message: Message) -> None:
        self._steps[message.sequence] = message.unroll.num_steps if message.unroll else 0
        self.unanswered += 1
        self.most_unanswered = max(self.most_unanswered, self.unanswered)
        self._link.send(message)

    def receive(self, timeout_s: float) -> Reply | None:
        reply = self._link.receive(timeout_s)
        if reply:
            self.unanswered -= 1
            self.answered_steps += 0 if reply.stop or reply.refused else self._steps[reply.sequence]
        return reply


class Fabric:
    """A learner in this thread, its inbox behind a socket, and actors in threads of their own."""

    def __init__(self, learner: Learner, folder: Path, config: Any) -> None:
        self.learner, self._config = learner, config
        address = f"ipc://{folder}/inbox"
        self._server = InboxServer(learner.inbox, address)
        peers = [Peer("actor", index, 0) for index in range(config.actors.count)]
        known_speakers(learner.inbox, *peers)
        self._sockets = [DealerLink(address, peer) for peer in peers]
        self.links = [CountingLink(socket) for socket in self._sockets]
        self._threads = [
            threading.Thread(target=self._act, args=(peer, link)) for peer, link in zip(peers, self.links, strict=True)
        ]
        self.most_waiting = 0

    def run(self, seconds: float, pause_s: float = 0.0) -> None:
        """Learns for `seconds`, with a pause after each step, then stops everybody."""
        for thread in self._threads:
            thread.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.learner.step(0.1):
            self.most_waiting = max(self.most_waiting, len(self.learner.inbox._unrolls))
            time.sleep(pause_s)
        Speaker(self.learner.inbox, Peer("manager", 0, 1)).say(stop="SIGINT")
        self.learner.step(0)
        self.learner.finish()
        for thread in self._threads:
            thread.join(20)
        self._server.check()
        self._server.close()
        for socket in self._sockets:
            socket.close()

    def _act(self, peer: Peer, link: Link) -> None:
        actor = Actor(self._config, RUN_ID, peer, link)
        while actor.step(1.0):
            pass
        actor.close()

    def assert_nothing_was_lost(self) -> None:
        """Whether the learner accepted what the actors were answered for, and no more than allowed was under way."""
        unanswered = self._config.actors.max_unanswered
        assert self.learner.counters.env_steps == sum(link.answered_steps for link in self.links) > 0
        assert self.learner.inbox.num_refused == 0
        assert max(link.most_unanswered for link in self.links) == unanswered
        assert self.most_waiting <= self._config.actors.count * unanswered


def share(run: Path, source: str, name: str) -> float:
    """The median of a share of the time that `source` reported."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(row[name] for row in rows if row["source"] == source and name in row)


@pytest.fixture
def folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="slow-", dir="/tmp"))  # an ipc path is short
    yield folder
    shutil.rmtree(folder)


class Slow(gymnasium.Wrapper[Any, Any, Any, Any]):
    def step(self, action: Any) -> Any:
        time.sleep(0.02)
        return super().step(action)


def slow(environment: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    return Slow(environment)


def test_a_learner_far_slower_than_its_actors_keeps_them_waiting(
    make_learner: MakeLearner, folder: Path, tmp_path: Path
) -> None:
    config = tiny_run()  # an unroll takes an actor about 2 ms
    fabric = Fabric(make_learner(config), folder, config)
    fabric.run(seconds=3, pause_s=0.2)
    fabric.assert_nothing_was_lost()
    assert fabric.most_waiting == config.actors.count * config.actors.max_unanswered
    assert share(tmp_path / "run_0", "actor_0", "time_waiting") > 0.8
    assert share(tmp_path / "run_0", "learner", "time_waiting") < 0.2


def test_actors_far_slower_than_their_learner_keep_it_waiting(
    make_learner: MakeLearner, folder: Path, tmp_path: Path
) -> None:
    config = tiny_run(environment__wrappers=(f"{__name__}:slow",))  # 20 steps an unroll, 400 ms
    fabric = Fabric(make_learner(config), folder, config)
    fabric.run(seconds=4)
    assert fabric.learner.counters.env_steps == sum(link.answered_steps for link in fabric.links) > 0
    assert fabric.most_waiting <= config.actors.count
    assert share(tmp_path / "run_0", "actor_0", "time_environment") > 0.8
    assert share(tmp_path / "run_0", "learner", "time_waiting") > 0.8


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


jumps = pytest.mark.parametrize("jump_s", [3600.0, -3600.0], ids=["forward", "back"])


@jumps
def test_a_clock_that_jumps_changes_no_duration(tmp_path: Path, clock: Clock, jump_s: float) -> None:
    def jump(status: dict[str, Any]) -> None:
        clock.ahead_s = jump_s if status["env_steps"] else 0.0

    began = time.monotonic()
    result = train(tiny_run(tmp_path, stop__env_steps=30_000, stop__minutes=1 / 60), Callbacks(on_status=jump))
    took = time.monotonic() - began
    assert clock.ahead_s == jump_s
    assert result.reason == "minutes"
    assert 1 <= result.wall_s < took
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    times = [row["wall_s"] for row in rows if row["source"] == "learner"]
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] < took


@jumps
def test_a_clock_that_jumps_at_the_start_changes_no_duration(
    tmp_path: Path, clock: Clock, jump_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(config: EnvironmentConfig) -> Any:
        clock.ahead_s = jump_s
        return check_environment(config)

    monkeypatch.setattr("apex_acer.manager.preparation.check_environment", check)
    began = time.monotonic()
    result = train(tiny_run(tmp_path, stop__env_steps=100))
    assert clock.ahead_s == jump_s
    assert 0 < result.startup_s < time.monotonic() - began


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
