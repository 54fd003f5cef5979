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
from typing import TYPE_CHECKING, Any, NamedTuple

import lz4.frame
import numpy as np

from apex_acer.learner.inbox import Answer
from apex_acer.protocol.messages import Link, Message, Peer, Reply

if TYPE_CHECKING:
    import ray

# a peer has only a few unanswered messages: if one is further ahead than this, some were lost, which the inbox will say
MOST_AHEAD = 16


class PackedMessage(NamedTuple):
    """A message; if its observations are compressed, they are in `obs` instead of its unroll."""

    message: Message
    obs: bytes = b""
    shape: tuple[int, ...] = ()
    dtype: str = ""


def pack(message: Message, *, compress: bool) -> PackedMessage:
    """`message` as it is sent; only an unroll's observations are compressed."""
    if not compress or message.unroll is None:
        return PackedMessage(message)
    obs = np.ascontiguousarray(message.unroll.obs)
    rest = dataclasses.replace(message, unroll=dataclasses.replace(message.unroll, obs=obs[:0]))
    return PackedMessage(rest, lz4.frame.compress(obs.data.cast("B")), obs.shape, obs.dtype.name)


def unpack(packed: PackedMessage) -> Message:
    """The message that was packed."""
    message = packed.message
    if not packed.obs or message.unroll is None:
        return message
    data = lz4.frame.decompress(packed.obs, return_bytearray=True)
    obs = np.frombuffer(data, packed.dtype).reshape(packed.shape)
    return dataclasses.replace(message, unroll=dataclasses.replace(message.unroll, obs=obs))


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


class GroupLink(Link):
    """The manager's link to all learners: each gets every message, and their replies are merged."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = links
        self._heard: list[deque[Reply]] = [deque() for _ in links]

    def send(self, message: Message) -> None:
        for link in self._links:
            link.send(message)

    def receive(self, timeout_s: float) -> Reply | None:
        """The next reply, once all learners have answered; None after `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        for link, heard in zip(self._links, self._heard, strict=True):
            while not heard:
                reply = link.receive(max(0.0, deadline - time.monotonic()))
                if reply is None:
                    return None
                heard.append(reply)
        return merge([heard.popleft() for heard in self._heard])


def merge(replies: Sequence[Reply]) -> Reply:
    """The first reply, with the progress of all peers; the learner's own is that of the learner with the fewest turns."""
    first = replies[0]
    progress: dict[str, Any] = {}
    for reply in replies:
        progress |= reply.status.get("progress", {})
    if turns := [reply.status["progress"]["learner"] for reply in replies if "progress" in reply.status]:
        progress["learner"] = min(turns)
    refused = next((reply.refused for reply in replies if reply.refused), "")
    return Reply(first.sequence, first.stop, refused=refused, status={**first.status, "progress": progress})


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
