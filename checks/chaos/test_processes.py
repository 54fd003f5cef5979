"""Processes that are killed, frozen and broken at random moments; the run goes on, and its numbers stay right."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apex_acer.actor.policy import load_policy
from apex_acer.config import SupervisionConfig
from apex_acer.config.runfile import load_run
from apex_acer.engines.local.transport import InboxServer
from apex_acer.learner.inbox import Inbox
from apex_acer.protocol.messages import Message, Peer, Reply
from apex_acer.protocol.unroll import ARRAY_FIELDS
from checks.chaos.faults import FAULTS
from tests.programs import Program, eventually, program, report
from tests.runs import CARTPOLE, RUN_ID, Speaker, made_up_unroll, tiny_layout, tiny_run

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="processes are looked up in /proc"),
]

KILLS, STORMS = 200, 5  # kills in all
FASTER = {"backoff_s": 0.05, "ready_s": 20.0, "supervision__restarts": 1000}
ENDLESS = {
    "stop__env_steps": 10**9,
    "replay__capacity": 2_000_000,  # so that replay holds every step there was
    "evaluation__every": 2000,
    "actors__count": 4,
    "supervision__hung_seconds": 2.0,
    "supervision__evaluation_minutes": 0.1,
}


SIGNS = {
    "raise": "ZeroDivisionError: the environment broke",
    "hang": "no progress for 5 s",
    "exit": "exit code 3",
    "crash": "killed by SIGSEGV",
    "nan": "FloatingPointError: environment.id: 'checks.chaos.faults:Faulty-v0' has an observation with nan, allowed is a",
    "dtype": "TypeError",
    "shape": "ValueError",
}


def test_every_fault_of_an_environment_is_survived_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kwargs = json.dumps({"faults": list(FAULTS), "done": str(tmp_path / "done")})
    environment = {"environment__id": "checks.chaos.faults:Faulty-v0", "environment__kwargs": kwargs}
    limits = {"supervision__hung_seconds": 5.0, "backoff_s": 0.05, "stop__env_steps": 1000}
    with program(tmp_path / "run", actors__count=1, actors__environments=1, **environment, **limits) as run:
        result = run.ended(within_s=100)
    assert result["reason"] == "env_steps"
    assert len(run.news) == len(FAULTS)
    for fault, line in zip(FAULTS, run.news, strict=True):
        assert line.startswith(f"actor_0: {SIGNS[fault]}")
    assert run.statuses[-1]["restarts"]["actor_0"] == len(FAULTS)
    log = (run.out / "log.txt").read_text()
    assert log.count("raise ZeroDivisionError") == 1, "the traceback is not in the log once"
    assert "in _hang" in log, "where it hung is not in the log"
    assert_counters(run, result)
    report(capsys, "faults", survived=list(FAULTS))


def assert_counters(run: Program, result: dict[str, Any]) -> None:
    """Nothing counted twice or backwards, and replay holds every step that was counted."""
    rows = [json.loads(line) for line in (run.out / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["source"] == "learner"]
    for name in ("env_steps", "updates"):
        values = [row[name] for row in rows] + [result[name]]
        assert values == sorted(values)
    assert all(row["replay_steps"] == row["env_steps"] for row in rows)
    assert rows[-1]["env_steps"] == result["env_steps"]
    assert load_policy(result["weights"]).metadata["env_steps"] == result["env_steps"]


def has_children(run: Program, count: int) -> bool:
    return len(run.children()) == count


def storm(run: Program, chance: random.Random, strikes: int, pause_s: float) -> Counter[str]:
    """Kills or freezes so many actors and evaluators, each process once; how often which."""
    struck: set[int] = set()
    done: Counter[str] = Counter()
    while done.total() < strikes:
        time.sleep(chance.uniform(0, pause_s))
        victims = [(name, pid) for name, pid in run.children().items() if name != "learner_0" and pid not in struck]
        assert run.running, run.said[-1:]
        if victims:
            name, pid = chance.choice(sorted(victims))
            number = chance.choice([signal.SIGKILL, signal.SIGSTOP])
            os.kill(pid, number)
            struck.add(pid)
            done[f"{name.partition('_')[0]} {number.name}"] += 1
    return done


@pytest.mark.timeout(3600)
def test_runs_go_on_through_200_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    total, strikes = Counter[str](), KILLS // STORMS
    changes: dict[str, Any] = FASTER | ENDLESS
    for seed in range(STORMS):
        with program(tmp_path / str(seed), **changes) as run:
            run.wait_until_it_learns()
            total += storm(run, random.Random(seed), strikes, pause_s=1.0)
            restarts = sum(run.statuses[-1]["restarts"].values())
            run.wait_until_it_learns(1000)
            run.wait_for(functools.partial(has_children, run, 2 + changes["actors__count"]))
            run.send(signal.SIGINT)
            result = run.ended(within_s=15)
        assert result["reason"] == "SIGINT"
        assert_counters(run, result)
        assert restarts >= strikes - 5  # those still frozen or in backoff at the last look
    report(capsys, "kills", runs=STORMS, kills=total.total(), **total)
    assert total.total() >= KILLS


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(3))
def test_cartpole_is_learned_while_an_actor_is_killed_every_second(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, kills, chance = load_run("cartpole"), 0, random.Random(seed)
    config = dataclasses.replace(
        config,
        seed=seed,
        actors=dataclasses.replace(config.actors, count=4),
        supervision=SupervisionConfig(restarts=1000),
    )
    with program(tmp_path / "run", config=config, backoff_s=0.05) as run:
        run.wait_for(lambda: run.statuses)
        while run.running:
            actors = sorted(name for name in run.children() if name.startswith("actor"))
            if actors:
                run.kill_child(chance.choice(actors))
                kills += 1
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.wait(1)
        result = run.ended(within_s=10)
    assert result["reason"] == "at_return"
    assert result["eval_return"] >= 475
    report(capsys, "cartpole", kills=kills, wall_s=result["wall_s"], eval_return=result["eval_return"])


@pytest.mark.timeout(1800)
def test_nothing_is_left_of_a_run_whose_manager_is_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kills, chance = 20, random.Random(0)
    for number in range(kills):
        with program(tmp_path / str(number), **(FASTER | ENDLESS)) as run:
            run.wait_for(run.children)
            if number % 2:  # with a frozen process among them
                run.wait_until_it_learns()
                run.kill_child(chance.choice(["actor_0", "actor_3"]), signal.SIGSTOP)
            time.sleep(chance.uniform(0, 3))
            run.send(signal.SIGKILL)
            run.assert_nothing_left(within_s=15)
    report(capsys, "manager kills", kills=kills, with_a_frozen_process=kills // 2, leftovers=0)


class Receiver:
    """A learner's end that notes every unroll it takes before answering it."""

    def __init__(self, address: str) -> None:
        config = tiny_run()
        self.inbox = Inbox(RUN_ID, tiny_layout(config), config.actors.environments, CARTPOLE, max_waiting=2)
        self.manager = Speaker(self.inbox, Peer("manager", 0, 0))
        self.taken: list[tuple[int, int]] = []
        self._server = InboxServer(self.inbox, address)
        self._ended = False
        self._thread = threading.Thread(target=self._take)
        self._thread.start()

    def _take(self) -> None:
        while not self._ended:
            if post := self.inbox.take_unroll(0.1):
                message = post.message
                self._check(message)
                self.taken.append((message.peer.incarnation, message.sequence))
                post.answer(Reply(message.sequence))

    def _check(self, message: Message) -> None:
        assert message.unroll is not None
        assert (message.unroll.reward == message.sequence).all()

    def close(self) -> None:
        self._ended = True
        self._thread.join()
        self._server.close()


@pytest.mark.timeout(600)
def test_every_answered_unroll_was_taken_exactly_once(socket_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kills, chance = 100, random.Random(0)
    store_unroll(socket_folder / "unroll.npz")
    with contextlib.closing(Receiver(f"ipc://{socket_folder}/inbox")) as receiver:
        answered = {number: speak_and_die(receiver, socket_folder, number, chance) for number in range(kills)}
    assert len(receiver.taken) == len(set(receiver.taken)) > 100
    for incarnation, sequences in answered.items():
        assert sequences == list(range(len(sequences)))
        taken = [sequence for of, sequence in receiver.taken if of == incarnation]
        assert taken == list(range(len(taken)))
        assert len(sequences) <= len(taken) <= len(sequences) + 2
    total = sum(map(len, answered.values()))
    report(capsys, "answered once", kills=kills, taken=len(receiver.taken), answered=total)


def store_unroll(path: Path) -> None:
    unroll = made_up_unroll(tiny_run())
    arrays = {name: getattr(unroll, name) for name in ARRAY_FIELDS}
    np.savez(path, **arrays, log_probs=unroll.extras["log_probs"])


def speak_and_die(receiver: Receiver, folder: Path, incarnation: int, chance: random.Random) -> list[int]:
    """One incarnation of an actor, killed at a random moment; the sequences it had answers to."""
    receiver.manager.say(incarnations={"actor_0": incarnation})
    file = folder / f"answered.{incarnation}"
    arguments = [f"ipc://{folder}/inbox", RUN_ID, str(incarnation), str(folder / "unroll.npz"), str(file)]
    process = subprocess.Popen([sys.executable, "-m", "checks.chaos.speaker", *arguments])
    try:
        eventually(file.exists, 60)
        time.sleep(chance.uniform(0, 0.3))
    finally:
        process.kill()
        process.wait()
    return [int(line) for line in file.read_text().split()]
