from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import zmq

from apex_acer.engines.local import transport
from apex_acer.engines.local.transport import DealerLink, InboxServer
from apex_acer.engines.local.wire import encode_message
from apex_acer.learner.inbox import Inbox, Post
from apex_acer.protocol.messages import Message, Peer, Reply
from tests.programs import eventually
from tests.runs import CARTPOLE, RUN_ID, known_speakers, made_up_unroll, tiny_layout, tiny_run

CONFIG = tiny_run()
FIRST, SECOND = Peer("actor", 0, 0), Peer("actor", 1, 0)


class Served:
    """An inbox behind a socket, and what a test needs to speak with it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.inbox = Inbox(RUN_ID, tiny_layout(CONFIG), CONFIG.actors.environments, CARTPOLE, max_waiting=8)
        known_speakers(self.inbox, FIRST, SECOND)
        self.server = InboxServer(self.inbox, address)
        self._close: list[Callable[[], None]] = [self.server.close]

    def link(self, peer: Peer) -> DealerLink:
        link = DealerLink(self.address, peer)
        self._close.append(link.close)
        return link

    def take_other(self) -> Post:
        while not (post := self.inbox.take_other()):
            time.sleep(0.002)
        return post

    def close(self) -> None:
        for close in reversed(self._close):
            close()


@pytest.fixture
def address() -> Iterator[str]:
    folder = tempfile.mkdtemp(dir="/tmp")  # an ipc path is short
    yield f"ipc://{folder}/inbox"
    shutil.rmtree(folder)


@pytest.fixture
def served(address: str) -> Iterator[Served]:
    with contextlib.closing(Served(address)) as served:
        yield served


def hello(peer: Peer, sequence: int = 0, **said: Any) -> Message:
    return Message(RUN_ID, peer, sequence, **said)


def assert_goes_on(served: Served, peer: Peer = SECOND) -> None:
    link = served.link(peer)
    link.send(hello(peer))
    served.take_other().answer(Reply(0, weights_version=5))
    assert link.receive(5) == Reply(0, weights_version=5)
    served.server.check()


def test_replies_come_in_the_order_of_the_messages(served: Served) -> None:
    links = {peer: served.link(peer) for peer in (FIRST, SECOND)}
    for sequence in range(10):
        for peer, link in links.items():
            link.send(hello(peer, sequence))
    for _ in range(20):
        post = served.take_other()
        post.answer(Reply(post.message.sequence, weights=b"%d" % post.message.peer.index))
    for peer, link in links.items():
        replies = [link.receive(5) for _ in range(10)]
        assert replies == [Reply(sequence, weights=b"%d" % peer.index) for sequence in range(10)]


def test_unrolls_arrive_whole_and_are_answered_when_the_learner_wants(served: Served) -> None:
    link = served.link(FIRST)
    sent = [made_up_unroll(CONFIG, seed) for seed in range(2)]
    for sequence, unroll in enumerate(sent):
        link.send(hello(FIRST, sequence, unroll=unroll))
    posts = [served.inbox.take_unroll(5) for _ in sent]
    for timeout_s in (0.0, 0.1):
        start = time.monotonic()
        assert link.receive(timeout_s) is None
        assert timeout_s - 0.01 <= time.monotonic() - start < timeout_s + 1
    for post, unroll in zip(posts, sent, strict=True):
        assert post is not None
        assert post.message.unroll is not None
        np.testing.assert_array_equal(post.message.unroll.obs, unroll.obs)
        np.testing.assert_array_equal(post.message.unroll.extras["log_probs"], unroll.extras["log_probs"])
        assert link.receive(0) is None
        post.answer(Reply(post.message.sequence))
        assert link.receive(5) == Reply(post.message.sequence)


def test_oversize_part_is_refused_and_counted_and_the_run_goes_on(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    huge = hello(FIRST, unroll=made_up_unroll(CONFIG))
    monkeypatch.setattr(transport, "MAX_PART_BYTES", len(encode_message(huge)[1]) - 1)
    with contextlib.closing(Served(address)) as served:
        served.link(FIRST).send(huge)
        assert_goes_on(served)
        eventually(lambda: served.inbox.num_refused == 1, 5)
        assert served.inbox.empty


def test_what_nobody_receives_holds_up_nobody(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    context = zmq.Context()
    monkeypatch.setattr(zmq.Context, "instance", lambda: context)
    link = DealerLink(address, FIRST)
    link.send(hello(FIRST))
    link.close()
    ending = threading.Thread(target=context.term, daemon=True)
    ending.start()
    ending.join(10)
    assert not ending.is_alive()


def test_reply_to_a_peer_that_left_disturbs_nobody(served: Served) -> None:
    link = served.link(FIRST)
    link.send(hello(FIRST))
    post = served.take_other()
    link.close()
    time.sleep(0.05)
    post.answer(Reply(0, weights=b"late"))
    assert_goes_on(served)


def test_close_sends_what_is_still_to_be_sent(address: str) -> None:
    for _ in range(10):
        with contextlib.closing(Served(address)) as served:
            link = served.link(FIRST)
            link.send(hello(FIRST))
            eventually(lambda inbox=served.inbox: not inbox.empty, 5)  # type: ignore[misc]
            served.inbox.stop("env_steps")
            served.server.close()
            reply = link.receive(2)
            assert reply is not None
            assert reply.stop


def test_failure_of_the_thread_reaches_the_learner(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(message: Message, answer: Callable[[Reply], None]) -> None:
        raise ZeroDivisionError("inbox")

    monkeypatch.setattr(served.inbox, "post", fail)
    served.link(FIRST).send(hello(FIRST))
    eventually(lambda: not served.server._thread.is_alive(), 5)
    with pytest.raises(ZeroDivisionError, match="inbox"):
        served.server.check()
