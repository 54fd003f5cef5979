"""Messages through Ray: each is a call of the learner's host, whose return value is the reply."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import ray
from ray.exceptions import RayError

from apex_acer.engines.ray.compression import pack
from apex_acer.learner.inbox import Answer
from apex_acer.protocol.messages import Link, Message, Peer, Reply

# a peer has only a few unanswered messages: if one is further ahead than this, some were lost, which the inbox will say
MOST_AHEAD = 16


class RayLink(Link):
    """A peer's side of the conversation: its unanswered calls, oldest first."""

    def __init__(
        self,
        learner: Any,
        *,
        compress: bool = False,
        wake: Callable[[], None] = lambda: None,
        heartbeat: Callable[[], None] = lambda: None,
    ) -> None:
        """`learner` is the handle of the learner's host.

        `wake` is called at each reply, from another thread; `heartbeat` after each step of the environments.
        """
        self._learner, self._compress, self._wake, self._heartbeat = learner, compress, wake, heartbeat
        self._calls: deque[Future[Any]] = deque()
        self._reply: Reply | None = None  # while its weights are fetched
        self._weights: Future[bytes] | None = None
        self._left = threading.Event()

    def send(self, message: Message) -> None:
        """Calls the learner's host, without waiting."""
        self._calls.append(self._future(self._learner.exchange.remote(pack(message, compress=self._compress))))

    def receive(self, timeout_s: float) -> Reply | None:
        """The next reply with its weights, or None after `timeout_s` seconds; a learner that died never replies."""
        deadline = time.monotonic() + timeout_s
        try:
            return self._receive(deadline) if self._calls else None
        except TimeoutError:
            return None
        except RayError:  # the learner died with all that it kept: another one takes over, or the run ends
            self._left.wait(max(0.0, deadline - time.monotonic()))
            return None

    def heartbeat(self) -> None:
        """Calls the given function."""
        self._heartbeat()

    def leave(self) -> None:
        """Ends, from another thread, a wait for a learner that died."""
        self._left.set()

    def _receive(self, deadline: float) -> Reply:
        if self._weights is None:
            self._reply, shared = self._calls[0].result(max(0.0, deadline - time.monotonic()))
            self._weights = self._future(shared) if shared else None
        assert self._reply
        reply = self._reply
        if self._weights:
            weights = self._weights.result(max(0.0, deadline - time.monotonic()))
            reply = dataclasses.replace(reply, weights=weights)
        self._calls.popleft()
        self._reply = self._weights = None
        return reply

    def _future(self, reference: ray.ObjectRef[Any]) -> Future[Any]:
        future: Future[Any] = reference.future()
        future.add_done_callback(lambda _: self._wake())
        return future


class Order:
    """Restores the order of each peer's messages by their sequence, because Ray may reorder calls."""

    def __init__(self) -> None:
        self._peers: dict[str, tuple[Peer, int, dict[int, tuple[Message, Answer]]]] = {}

    def take(self, message: Message, answer: Answer, post: Callable[[Message, Answer], None]) -> None:
        """Posts `message` and those that waited for it, or keeps it until all messages before it have come."""
        peer, expected, ahead = self._peers.get(message.peer.name, (None, 0, {}))
        if peer != message.peer:  # a new incarnation, which makes the previous one's messages obsolete
            expected, ahead = 0, {}
        ahead[message.sequence] = message, answer
        if not expected <= message.sequence < expected + MOST_AHEAD:
            post(*ahead.pop(message.sequence))  # the inbox refuses it
            return
        while expected in ahead:
            post(*ahead.pop(expected))
            expected += 1
        self._peers[message.peer.name] = message.peer, expected, ahead
