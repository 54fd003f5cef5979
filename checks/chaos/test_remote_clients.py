"""A run whose clients are killed, frozen and cut off all the time learns, counts right, and its actor does not grow."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from apex_acer.config import RunConfig
from apex_acer.config.runfile import load_run
from checks.chaos.players import Players
from checks.chaos.soak import MAX_MB_PER_MINUTE, Sample, judge, look
from tests.programs import Program, program, report
from tests.remote.conftest import free_port

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="processes are looked up in /proc")
CLIENTS = 8
SOLVED = 475.0


def a_run(port: int) -> RunConfig:
    """`cartpole-remote` without an end, on a port of its own."""
    config = load_run("cartpole-remote")
    remote = dataclasses.replace(config.environment.remote, listen=f"127.0.0.1:{port}", grace_s=2.0)
    return dataclasses.replace(
        config,
        engine="local",
        environment=dataclasses.replace(config.environment, remote=remote),
        evaluation=dataclasses.replace(config.evaluation, every=5000),
        stop=dataclasses.replace(config.stop, env_steps=10**9, at_return=None),
        supervision=dataclasses.replace(config.supervision, restarts=10**6),
        logging=dataclasses.replace(config.logging, every_seconds=0.5),
    )


class Played(NamedTuple):
    """A run, and its clients."""

    run: Program
    players: Players


@contextlib.contextmanager
def played(folder: Path) -> Iterator[Played]:
    """A run that has begun to learn from its clients."""
    port = free_port()
    with program(folder / "program", config=a_run(port)) as run:
        token = folder / "program" / "run" / "token"
        run.wait_for(token.exists)
        players = Players(CLIENTS, port, token.read_text().strip(), folder / "counts")
        try:
            run.wait_until_it_learns()
            yield Played(run, players)
        finally:
            players.close()


def disturb(players: Players, chance: random.Random) -> str:
    """Kills, freezes or cuts off a client; the frozen one goes on after a while, sooner or later than the grace period."""
    number = chance.randrange(CLIENTS)
    kind = chance.choice(("killed", "frozen", "cut off", "cut off"))
    if kind == "killed":
        players.kill(number)
    elif kind == "frozen":
        players.signal(number, signal.SIGSTOP)
        time.sleep(chance.choice((0.1, 0.5, 3.0)))
        players.signal(number, signal.SIGCONT)
    else:
        line = players.lines[number]
        line.open.clear()
        line.cut()
        time.sleep(chance.choice((0.0, 0.1, 3.0)))
        line.open.set()
    return kind


def wait_for_all(run: Program) -> None:
    """Until all clients are connected; one that is away at the end of a run hears no goodbye."""
    run.wait_until_it_works("actor_0")
    run.wait_for(lambda: run.statuses[-1]["rows"]["actor_0"]["clients"] == CLIENTS)


def is_another(run: Program, pid: int) -> bool:
    """Whether the actor has another process than `pid`."""
    return run.children().get("actor_0", pid) != pid


class Watch:
    """Looks at a process twice a second, in a thread of its own."""

    def __init__(self, pid: int) -> None:
        self.samples: list[Sample] = []
        self._pid, self._stops = pid, threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def close(self) -> None:
        self._stops.set()
        self._thread.join()

    def _look(self) -> None:
        began = time.monotonic()
        while not self._stops.wait(0.5):
            look(self.samples, time.monotonic() - began, self._pid)


@pytest.mark.parametrize(
    "seconds", [pytest.param(15.0, marks=pytest.mark.slow), pytest.param(600.0, marks=pytest.mark.chaos)]
)
@pytest.mark.timeout(1200)
def test_a_run_outlives_its_clients(seconds: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chance, done, over = random.Random(0), Counter[str](), 0
    with played(tmp_path) as (run, players):
        pid, ends_at = run.children()["actor_0"], time.monotonic() + seconds
        watch = Watch(pid)
        while time.monotonic() < ends_at:
            done[disturb(players, chance)] += 1
            learned = run.statuses[-1]["env_steps"]
            over = max(over, learned - players.made)
            time.sleep(chance.uniform(0, 1))
        wait_for_all(run)
        watch.close()
        assert run.children()["actor_0"] == pid, "the actor was restarted"
        assert players.living == CLIENTS
        run.send(signal.SIGINT)
        result = run.ended(within_s=20)
        assert players.ended(within_s=30) == [0] * CLIENTS
        made = players.made
    figures = judge(watch.samples) if seconds >= 600 else {}
    found: dict[str, Any] = {"disturbed": done.total(), **done, "made": made, "learned": result["env_steps"]}
    report(capsys, "clients", seconds=seconds, best=run.statuses[-1]["best"], **found, **figures)
    assert over <= 0, "more was learned from than was made"
    settings = a_run(1).algorithm.unroll_length
    # at the end an incomplete unroll in each place, and those on their way
    assert made - (CLIENTS + 8) * settings - done.total() <= result["env_steps"] <= made
    assert result["reason"] == "SIGINT"
    assert "Traceback" not in (run.out / "log.txt").read_text()
    if seconds >= 600:
        assert run.statuses[-1]["best"] >= SOLVED
        assert figures["MB/min"] <= MAX_MB_PER_MINUTE
        assert figures["files later"] <= figures["files"] + CLIENTS


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_clients_outlive_the_actor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paused = []
    with played(tmp_path) as (run, players):
        for _ in range(3):
            pid, began = run.children()["actor_0"], time.monotonic()
            os.kill(pid, signal.SIGKILL)
            run.wait_for(functools.partial(is_another, run, pid))
            run.wait_until_it_learns(500)
            paused.append(round(time.monotonic() - began, 1))
            assert players.living == CLIENTS
            assert run.statuses[-1]["env_steps"] <= players.made
        wait_for_all(run)
        run.send(signal.SIGINT)
        result = run.ended(within_s=20)
        assert players.ended(within_s=30) == [0] * CLIENTS
        made = players.made
    report(capsys, "actor kills", until_500_steps_s=paused, made=made, learned=result["env_steps"])
    assert result["env_steps"] <= made
