"""Messages through Ray: each is a call of the learner's host, whose return value is the reply.

Ray itself is imported where it is used, because only the link of a run needs it.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import lz4.frame
import numpy as np

from apex_acer.learner.inbox import Answer
from apex_acer.protocol.messages import Link, Message, Peer, Reply

if TYPE_CHECKING:
    import ray

# a peer has only a few unanswered messages: if one is further ahead than this, some were lost, which the inbox will say
MOST_AHEAD = 16
Packed = tuple[Message, bytes]
"""A message, and the compressed observations of its unroll, which then has none; empty if they are not compressed."""


def pack(message: Message, *, compress: bool) -> Packed:
    """`message` as it is sent; only an unroll's observations are compressed."""
    if not compress or message.unroll is None:
        return message, b""
    obs = np.ascontiguousarray(message.unroll.obs)
    rest = dataclasses.replace(message, unroll=dataclasses.replace(message.unroll, obs=obs[:0]))
    return rest, lz4.frame.compress(obs.data.cast("B"))


def unpack(packed: Packed) -> Message:
    """The message that was packed."""
    message, compressed = packed
    if not compressed or message.unroll is None:
        return message
    none = message.unroll.obs  # shape [0, N, …] and type are those of the observations
    obs = np.frombuffer(lz4.frame.decompress(compressed, return_bytearray=True), none.dtype)
    unroll = dataclasses.replace(message.unroll, obs=obs.reshape(-1, *none.shape[1:]))
    return dataclasses.replace(message, unroll=unroll)


class RayLink(Link):
    """A peer's link to one learner, or the manager's to all of them: its unanswered calls, oldest first."""

    def __init__(
        self,
        *learners: Any,
        compress: bool = False,
        wake: Callable[[], None] = lambda: None,
        heartbeat: Callable[[], None] = lambda: None,
    ) -> None:
        """`learners` are handles of hosts; each gets every message, and their replies are merged.

        `wake` is called at each reply, from another thread; `heartbeat` after each step of the environments.
        """
        self._learners, self._compress, self._wake, self._heartbeat = learners, compress, wake, heartbeat
        self._calls: deque[list[Future[Any]]] = deque()
        self._weights: Future[bytes] | None = None  # of the oldest call's reply
        self._left = threading.Event()

    def send(self, message: Message) -> None:
        packed = pack(message, compress=self._compress)
        self._calls.append([self._future(learner.exchange.remote(packed)) for learner in self._learners])

    def receive(self, timeout_s: float) -> Reply | None:
        """The next reply with its weights, or None after `timeout_s` seconds; a learner that died never replies."""
        from ray.exceptions import RayError

        deadline = time.monotonic() + timeout_s
        try:
            return self._receive(deadline) if self._calls else None
        except TimeoutError:
            return None
        except RayError:  # the learner died with all that it kept: another one takes over, or the run ends
            self._left.wait(max(0.0, deadline - time.monotonic()))
            return None

    def heartbeat(self) -> None:
        self._heartbeat()

    def leave(self) -> None:
        """Ends, from another thread, a wait for a learner that died."""
        self._left.set()

    def _receive(self, deadline: float) -> Reply:
        """The next reply; raises TimeoutError if it is not there by then, and its parts are waited for again."""
        answers = [call.result(max(0.0, deadline - time.monotonic())) for call in self._calls[0]]
        reply: Reply = answers[0][0]
        shared = answers[0][1]
        if len(answers) > 1:
            reply = merge([reply for reply, _ in answers])
        if shared:
            self._weights = self._weights or self._future(shared)
            weights = self._weights.result(max(0.0, deadline - time.monotonic()))
            reply = dataclasses.replace(reply, weights=weights)
        self._calls.popleft()
        self._weights = None
        return reply

    def _future(self, reference: ray.ObjectRef[Any]) -> Future[Any]:
        future: Future[Any] = reference.future()
        future.add_done_callback(lambda _: self._wake())
        return future


def merge(replies: Sequence[Reply]) -> Reply:
    """The first reply, with the progress of all peers; the learners' own is that of the one with the fewest turns."""
    first = replies[0]
    progress: dict[str, Any] = {}
    for reply in replies:
        progress |= reply.status.get("progress", {})
    if turns := [reply.status["progress"]["learner"] for reply in replies if "progress" in reply.status]:
        progress["learner"] = min(turns)
    refused = next((reply.refused for reply in replies if reply.refused), "")
    return Reply(first.sequence, first.stop, refused=refused, status={**first.status, "progress": progress})


def in_order(post: Callable[[Message, Answer], None]) -> Callable[[Message, Answer], None]:
    """`post`, called with each peer's messages in the order of their sequence, because Ray may reorder calls."""
    peers: dict[str, tuple[Peer, int, dict[int, tuple[Message, Answer]]]] = {}

    def take(message: Message, answer: Answer) -> None:
        """Posts `message` and those that waited for it, or keeps it until all messages before it have come."""
        peer, expected, ahead = peers.get(message.peer.name, (None, 0, {}))
        if peer != message.peer:  # a new incarnation, which makes the previous one's messages obsolete
            expected, ahead = 0, {}
        ahead[message.sequence] = message, answer
        if not expected <= message.sequence < expected + MOST_AHEAD:
            post(*ahead.pop(message.sequence))  # the inbox refuses it
            return
        while expected in ahead:
            post(*ahead.pop(expected))
            expected += 1
        peers[message.peer.name] = message.peer, expected, ahead

    return take
