"""Whatever arrives is taken as a valid message or refused, and the conversation beside it goes on."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq

from apex_acer.engines.local.transport import DealerLink, InboxServer
from apex_acer.engines.local.wire import encode_message
from apex_acer.learner.inbox import Inbox
from apex_acer.protocol.messages import Message, Reply
from checks.chaos.fuzz import (
    ACTOR,
    RUNS,
    Mutator,
    decoded,
    deliver,
    fuzz_messages,
    fuzz_replies,
    good_messages,
    make_inbox,
)
from tests.programs import eventually, report
from tests.runs import RUN_ID, made_up_unroll

MILLION = 1_000_000


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)  # every inbox logs its first refusal
    yield
    logging.disable(logging.NOTSET)


# ── the decoder and the inbox ──


def test_messages_are_refused_or_valid() -> None:
    for run in RUNS:
        assert [deliver(run, parts) for parts in good_messages(run)] == ["taken"] * 4, run
    outcomes = fuzz_messages(seed=0, count=10_000)
    assert outcomes["malformed"] > 2_500
    assert min(outcomes["refused"], outcomes["taken"]) > 200, "the injuries do not reach the inbox"
    assert min(fuzz_replies(seed=0, count=2_000).values()) > 200
    random = Mutator(0).random
    for _ in range(300):
        noise = [random.randbytes(random.randrange(65)) for _ in range(random.randrange(5))]
        assert deliver("feed-forward", noise) == decoded(noise) == "malformed"


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_a_million_injured_messages_are_refused_or_valid(capsys: pytest.CaptureFixture[str]) -> None:
    start, outcomes = time.monotonic(), Counter[str]()
    for seed in range(1, 11):
        outcomes += fuzz_messages(seed, MILLION // 10)
    replies = fuzz_replies(seed=1, count=MILLION // 10)
    report(capsys, "messages", **outcomes, replies=replies.total(), wall_s=round(time.monotonic() - start))
    assert outcomes.total() >= MILLION
    assert min(outcomes.values()) > MILLION // 100


def test_refusals_fill_neither_memory_nor_log(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr("apex_acer.learner.inbox.log.warning", lambda text, *values: logged.append(text % values))
    inbox, mutator = make_inbox("feed-forward"), Mutator(0)
    for _ in range(1000):
        word = "".join(mutator.random.choices("abcdefgh\n", k=3000))
        inbox.count_refused(f"from {word!r}: whatever")
    assert inbox.num_refused == 1000
    assert 1 <= len(logged) <= 100
    assert [len(line) for line in logged if len(line) > 500 or not line.isprintable()] == []
    assert max(len(str(value)) for value in vars(inbox).values()) < 100_000


# ── sockets ──


class Served:
    """An inbox behind a socket, and an actor's conversation with it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.inbox: Inbox = make_inbox("feed-forward")
        self.server = InboxServer(self.inbox, f"ipc://{path}")
        self.exchanged = 0
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._guard, args=(role,)) for role in (self._speak, self._learn)]
        for thread in self._threads:
            thread.start()

    def send(self, identity: bytes, messages: list[list[bytes]]) -> None:
        """Sends `messages` as the peer that `identity` names."""
        stranger: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        stranger.setsockopt(zmq.IDENTITY, identity)
        stranger.setsockopt(zmq.LINGER, 5000)
        stranger.setsockopt(zmq.SNDTIMEO, 5000)
        with stranger:
            stranger.connect(f"ipc://{self.path}")
            for parts in messages:
                stranger.send_multipart(parts)

    def assert_goes_on(self) -> None:
        """Whether the conversation gets further by a hundred exchanges."""
        goal = self.exchanged + 100
        eventually(lambda: self.exchanged >= goal or self._failure is not None, 20)
        if self._failure:
            raise self._failure
        self.server.check()

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(10)
        self.server.close()

    def _guard(self, role: Callable[[], None]) -> None:
        try:
            role()
        except BaseException as error:
            self._failure = error

    def _speak(self) -> None:
        link = DealerLink(f"ipc://{self.path}", ACTOR)
        with contextlib.closing(link):
            while not self._stop.is_set():
                unroll = made_up_unroll(RUNS["feed-forward"], self.exchanged)
                link.send(Message(RUN_ID, ACTOR, self.exchanged, unroll=unroll))
                assert link.receive(10) == Reply(self.exchanged, weights_version=self.exchanged)
                self.exchanged += 1

    def _learn(self) -> None:
        while not self._stop.is_set() or self._threads[0].is_alive():  # it waits for its last answer
            if post := self.inbox.take_unroll(0.1):
                assert post.message.unroll is not None
                expected = made_up_unroll(RUNS["feed-forward"], post.message.sequence)
                np.testing.assert_array_equal(post.message.unroll.obs, expected.obs)
                post.answer(Reply(post.message.sequence, weights_version=post.message.sequence))


GREETINGS = b"", b"\xff" + b"\0" * 8 + b"\x7f\x03\x00NULL" + b"\0" * 48  # the other one is ZeroMQ's


def test_strangers_are_counted_beside_a_conversation_that_goes_on(socket_folder: Path) -> None:
    with contextlib.closing(Served(socket_folder / "inbox")) as served:
        served.assert_goes_on()
        # under the actor's name
        forged = [bytes(part) for part in encode_message(Message(RUN_ID, ACTOR, served.exchanged))]
        served.send(b"actor_1.2", [forged] * 100)
        served.assert_goes_on()
        assert served.inbox.num_refused in (0, 1), "the stranger's leaving may count"
        # injured messages
        mutator, good = Mutator(0), good_messages("feed-forward")
        messages = [mutator.parts(mutator.random.choice(good)) for _ in range(2000)]
        messages = [parts or [b""] for parts in messages]  # ZeroMQ has no message without a part
        served.send(b"stranger", messages)
        eventually(lambda: served.inbox.num_refused >= len(messages), 20)
        served.assert_goes_on()
        assert served.inbox.num_refused - len(messages) in (0, 1, 2)
        # no ZeroMQ at all
        for number in range(100):
            with socket.socket(socket.AF_UNIX) as stranger, contextlib.suppress(BrokenPipeError, ConnectionResetError):
                stranger.settimeout(5)
                stranger.connect(str(served.path))
                stranger.sendall(GREETINGS[number % 2] + mutator.random.randbytes(mutator.random.randrange(1, 5000)))
        served.assert_goes_on()
