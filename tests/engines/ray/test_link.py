"""How messages travel: packed, in order, and what a peer hears of a learner that is slow, dead or replaced."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ray.exceptions import ActorDiedError

from apex_acer import __version__
from apex_acer.engines.engine import Run
from apex_acer.engines.ray.hosts import PeerHost
from apex_acer.engines.ray.link import MOST_AHEAD, RayLink, in_order, merge, pack, unpack
from apex_acer.protocol.messages import Message, Peer, Reply
from tests.conftest import assert_equal_unrolls, config_error
from tests.runs import CARTPOLE, RUN_ID, made_up_unroll, tiny_run

ACTOR = Peer("actor", 0, 0)


def message(sequence: int, peer: Peer = ACTOR, **said: Any) -> Message:
    return Message(RUN_ID, peer, sequence, **said)


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize("compress", [False, True])
def test_a_message_arrives_as_it_was_sent(compress: bool, dtype: str) -> None:
    obs = np.repeat(np.arange(6 * 4, dtype=dtype).reshape(6, 4, 1), 500, -1)[:, ::-1]  # not contiguous
    sent = message(3, unroll=made_up_unroll(tiny_run(), obs=obs), wants_weights=True)
    packed = pack(sent, compress=compress)
    got = unpack(packed)
    assert got.unroll is not None
    assert sent.unroll is not None
    assert_equal_unrolls(got.unroll, sent.unroll)
    assert dataclasses.replace(got, unroll=None) == dataclasses.replace(sent, unroll=None)
    assert got.unroll.obs.flags.writeable
    if compress:
        rest, compressed = packed
        assert rest.unroll is not None
        assert rest.unroll.obs.nbytes + len(compressed) < obs.nbytes / 5


def test_what_has_no_observations_is_not_compressed() -> None:
    assert pack(message(0), compress=True) == (message(0), b"")


class Posted:
    """What `in_order` has handed on."""

    def __init__(self) -> None:
        self._take = in_order(self._post)
        self.messages: list[tuple[Peer, int]] = []

    def take(self, *sequences: int, peer: Peer = ACTOR) -> list[int]:
        """Sequences handed on at these."""
        before = len(self.messages)
        for sequence in sequences:
            self._take(message(sequence, peer), lambda reply: None)
        return [sequence for of, sequence in self.messages[before:] if of == peer]

    def _post(self, message: Message, answer: Any) -> None:
        self.messages.append((message.peer, message.sequence))


def test_each_peer_s_messages_are_handed_on_in_their_order() -> None:
    posted, other, next_one = Posted(), Peer("actor", 1, 0), Peer("actor", 0, 1)
    assert posted.take(1, 2) == []
    assert posted.take(0, peer=other) == [0]
    assert posted.take(0) == [0, 1, 2]
    assert posted.take(4) == []
    assert posted.take(3) == [3, 4]
    assert posted.take(6) == []
    assert posted.take(1, peer=next_one) == []  # another incarnation begins anew
    assert posted.take(0, peer=next_one) == [0, 1]
    assert posted.take(1) == []  # of one that has gone: nobody waits for it


def test_what_can_have_no_turn_is_handed_on_to_be_refused() -> None:
    posted = Posted()
    assert posted.take(0, 1) == [0, 1]
    assert posted.take(0) == [0]
    assert posted.take(2 + MOST_AHEAD) == [2 + MOST_AHEAD]
    assert posted.take(2) == [2]


class Learner:
    """The handle of a learner's host, whose calls are answered by hand."""

    def __init__(self) -> None:
        self.calls: list[Future[Any]] = []
        self.exchange = SimpleNamespace(remote=self._call)

    def _call(self, packed: Any) -> Any:
        self.calls.append(Future())
        return SimpleNamespace(future=lambda call=self.calls[-1]: call)

    def answer(self, number: int, shared: Any = None, **said: Any) -> None:
        self.calls[number].set_result((Reply(number, **said), shared))


def test_replies_come_in_the_order_of_the_messages_and_wake() -> None:
    woken: list[int] = []
    learner = Learner()
    link = RayLink(learner, wake=lambda: woken.append(1))
    assert link.receive(0) is None
    for sequence in range(2):
        link.send(message(sequence))
    learner.answer(1)
    assert link.receive(0) is None
    learner.answer(0)
    assert len(woken) == 2
    assert [reply.sequence for reply in (link.receive(0), link.receive(0)) if reply] == [0, 1]
    assert link.receive(0) is None


def test_weights_that_are_still_on_their_way_are_waited_for() -> None:
    learner, weights = Learner(), Future[bytes]()
    link = RayLink(learner)
    link.send(message(0))
    learner.answer(0, SimpleNamespace(future=lambda: weights), weights_version=7)
    assert link.receive(0.01) is None
    weights.set_result(b"tensors")
    assert link.receive(0) == Reply(0, weights_version=7, weights=b"tensors")


def test_who_asks_a_learner_that_died_waits_until_it_is_replaced(tmp_path: Path) -> None:
    first, second = Learner(), Learner()
    host = PeerHost(Run(tiny_run(), CARTPOLE, tmp_path, RUN_ID, 0.0).start_of(ACTOR, {}), first)
    link = host._link
    link.send(message(0))
    first.calls[0].set_exception(ActorDiedError())
    asyncio.run(host.reconnect(first))
    started = time.monotonic()
    assert link.receive(0.2) is None
    assert time.monotonic() - started >= 0.2, "it would ask a learner that died again and again"
    threading.Timer(0.1, lambda: asyncio.run(host.reconnect(second))).start()
    assert link.receive(60) is None
    assert time.monotonic() - started < 30


def test_another_version_is_refused_in_one_line(tmp_path: Path) -> None:
    run = Run(tiny_run(), CARTPOLE, tmp_path, RUN_ID, 0.0)
    host = PeerHost(run.start_of(ACTOR, {}, version="0.0.0"), Learner())
    message = config_error(host._check_version)
    assert f"has apex_acer {__version__}, the manager 0.0.0" in message


def test_the_manager_speaks_with_all_of_them() -> None:
    first, second = Learner(), Learner()
    link = RayLink(first, second)
    link.send(message(0, Peer("manager", 0, 0)))
    first.answer(0, status={"env_steps": 5, "progress": {"actor_0": [3, 1], "learner": [9, 0]}})
    assert link.receive(0) is None  # the second one has not answered
    second.answer(0, status={"env_steps": 4, "progress": {"actor_1": [2, 0], "learner": [7, 0]}})
    reply = link.receive(0)
    assert reply is not None
    assert reply.status == {"env_steps": 5, "progress": {"actor_0": [3, 1], "actor_1": [2, 0], "learner": [7, 0]}}
    assert link.receive(0) is None
    assert merge([Reply(3), Reply(3, refused="no"), Reply(3)]).refused == "no"
    assert merge([Reply(3, stop=True), Reply(3)]).stop
