"""Components and their rates: with a real actor, with processes that measure, and with rates made up."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from apex_acer.actor.actor import Actor
from apex_acer.algorithms import make_agent
from apex_acer.algorithms.acer.settings import AcerConfig
from apex_acer.algorithms.dqn.settings import ApexDqnConfig
from apex_acer.config import RunConfig
from apex_acer.config.runfile import load_run
from apex_acer.engines.local.wire import Part, encode_message
from apex_acer.environments.vector import environment_spec
from apex_acer.networks.device import CPU
from apex_acer.networks.weights import named_tensors, pack
from apex_acer.protocol.messages import Link, Message, Peer, Reply
from apex_acer.tools.capacity import measure
from apex_acer.tools.capacity.components import Components, replay_bytes_per_step
from tests.engines.test_machine import PONG
from tests.processes import children
from tests.runs import tiny_run

# ── components ──


class WireLink(Link):
    """Keeps the bytes that are sent, and answers with the weights it was given."""

    def __init__(self, weights: bytes) -> None:
        self.sent: list[list[Part]] = []
        self._weights = weights

    def send(self, message: Message) -> None:
        self.sent.append(encode_message(message))

    def receive(self, timeout_s: float) -> Reply | None:
        return Reply(len(self.sent) - 1, weights_version=0, weights=self._weights)


def test_components_are_those_of_an_actor_and_a_learner() -> None:
    config = tiny_run(algorithm__name="apex_dqn", logging__every_seconds=1000.0)
    network = make_agent(config, environment_spec(config.environment)).network
    link = WireLink(pack(named_tensors(network, "network"), {"weights_version": 0}))
    actor = Actor(config, "capacity", Peer("actor", 0, 0), link)
    while len(link.sent) < 5:
        actor.step(0)
        actor._send_unroll()
    actor.close()
    components = Components(config, CPU)
    unrolls = [sum(map(len, parts)) for parts in link.sent if len(parts) == 2]
    size = components.sizes["unroll_bytes"] * components.sending()
    assert unrolls == pytest.approx([size] * len(unrolls), abs=8)  # digits of numbers
    before = components._storage.num_inserted
    steps = [components.intake() for _ in range(5)]
    assert components._storage.num_inserted == before + 5 * 4  # environments
    assert steps == [components.sending() for _ in range(5)]


@pytest.mark.slow
def test_compressed_observations_are_smaller_on_the_wire_where_they_repeat() -> None:
    plain, compressed = (
        Components(tiny_run(environment__id="ALE/Pong-v5", environment__stack=4, ray__compress=compress), CPU).sizes
        for compress in (False, True)
    )
    assert plain["unroll_bytes"] > 84 * 84 > 8 * compressed["unroll_bytes"]
    assert plain["weights_bytes"] == compressed["weights_bytes"]


# ── processes that measure ──


def test_components_are_measured_in_processes_of_their_own() -> None:
    before = set(children(os.getpid()))  # of tests before this one
    names = ("environment", "acting", "sending", "intake", "update", "stepping", "weights_bytes")
    rates = measure.measure("cartpole", names, seconds=0.1)
    assert rates.keys() == set(names)
    assert rates["environment"] > rates["acting"] > 100  # acting is an environment step and more
    assert rates["stepping"] > rates["update"] > 100  # which has the gradient, too
    assert min(rates.values()) > 0
    assert rates["weights_bytes"] == round(rates["weights_bytes"])
    assert before.issuperset(children(os.getpid()))


def worker(folder: Path, commands: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a shell's `commands` stand in for a measuring process."""
    program = folder / "worker"
    program.write_text(f"#!/bin/sh\n{commands}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


def test_a_piece_that_fails_is_named_by_its_last_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker(tmp_path, "printf 'Traceback\\nit is not registered\\n' >&2; exit 1", monkeypatch)
    with pytest.raises(RuntimeError, match=r"^it is not registered$"):
        measure.measure("cartpole", ("environment",), seconds=0.2)


@pytest.mark.parametrize("says", ["", "echo ready"], ids=["before it measures", "while it measures"])
def test_measuring_has_a_deadline(says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(children(os.getpid()))
    monkeypatch.setattr(measure, "DEADLINE_S", 0.1)
    worker(tmp_path, f"{says}\nexec sleep 60", monkeypatch)
    with pytest.raises(RuntimeError, match=r"^killed after 0 s"):
        measure.measure("cartpole", ("environment",), seconds=60)
    assert before.issuperset(children(os.getpid()))


def test_in_turns_each_is_called_as_often() -> None:
    calls: list[str] = []

    def work(name: str, spins: int) -> int:
        calls.append(name)
        sum(range(spins))
        return 10

    rates = measure.in_turns({"much": lambda: work("much", 200_000), "little": lambda: work("little", 20_000)}, 0.02)
    assert calls == ["much", "little"] * (len(calls) // 2)
    assert rates["little"] > 3 * rates["much"] > 0


# ── what rates mean ──


def replaying(ratio: float, config: Any = AcerConfig) -> RunConfig:
    return RunConfig(algorithm=config(replay_ratio=ratio))


def test_the_ceiling_is_that_of_the_busiest_resource() -> None:
    rates, each = {"acting": 2000.0, "update": 5000.0}, 1 / 2000 + 5 / 5000
    assert measure.ceiling(rates, replaying(4.0), 8, 8) == pytest.approx(8 / each)
    assert measure.ceiling(rates, replaying(4.0), 8, 1) == pytest.approx(1000)  # a learner with one thread
    assert measure.ceiling(rates, replaying(4.0), 8, 2, gpu=True) == pytest.approx(1000)
    assert measure.ceiling(rates, replaying(0.25), 1, 2, gpu=True) == pytest.approx(2000)  # the actors
    only_replay = replaying(5.0, ApexDqnConfig)  # nothing is trained on fresh
    assert measure.ceiling(rates, only_replay, 8, 8) == pytest.approx(8 / each)


def test_replay_is_compressed_in_main_memory_alone() -> None:
    bytes_on = {
        device: replay_bytes_per_step(load_run("pong", learner={"device": device}), PONG) for device in ("cpu", "cuda")
    }
    assert bytes_on["cuda"] == pytest.approx(8511, abs=1)
    assert bytes_on["cpu"] < 1000


def test_rates_become_what_one_environment_step_takes() -> None:
    config = RunConfig(algorithm=AcerConfig(replay_ratio=4.0, unroll_length=20))
    unknown = {"acting": 1000.0, "sending": 4000.0, "intake": 10_000.0, "unroll_bytes": 50.0, "weights_bytes": 2e4}
    on_gpu = unknown | {"update": 5000.0}
    on_cores = on_gpu | {"stepping": 50_000.0}
    work = measure.make_work(on_cores, config, 100.0)
    assert work.acting_s == pytest.approx(1 / 1000 + 1 / 4000)
    assert work.intake_s == pytest.approx(1e-4)
    assert work.stepping_s == pytest.approx(5 / 50_000)  # a fresh sample and four replayed ones
    assert work.gradient_s == pytest.approx(5 / 5000 - 5 / 50_000)
    assert work.updates == pytest.approx(5 / (16 * 20))  # batch size, unroll length
    assert work.requests == pytest.approx(1 / (20 * 8))  # weights_every, environments
    assert measure.make_work(on_gpu, config, 100.0).gradient_s == pytest.approx(5 / 5000), "a GPU does whole updates"
    assert measure.make_work(unknown, config, 100.0).gradient_s is None
    single_steps = dataclasses.replace(config, algorithm=ApexDqnConfig(replay_ratio=4.0))
    assert measure.make_work(on_cores, single_steps, 100.0).updates == pytest.approx(4 / 16)
