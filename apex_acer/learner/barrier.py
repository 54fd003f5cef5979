"""What makes actors wait for an update: each is answered, and so may act, only as far as the next batch needs its unroll."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from apex_acer.learner.inbox import Post
from apex_acer.protocol.messages import Message, Peer


class Barrier:
    """Holds the messages of actors until they may be answered.

    An actor makes one unroll for each answer. If actors wait for updates, as many are answered as the batch that is being
    collected still needs, so all of its unrolls are acted with the newest weights; the others are answered after the update.
    """

    def __init__(self, needed: int, is_current: Callable[[Peer], bool]) -> None:
        """`needed` is the number of unrolls in a batch; 0: actors do not wait. `is_current`: an actor was not replaced."""
        self._needed, self._is_current = needed, is_current
        self._held: deque[Post] = deque()
        self._acting: set[Peer] = set()

    def refusal(self, message: Message, version: int) -> str:
        """Why the unroll in `message` may not be in a batch for weights of `version`; empty if it may.

        The turn of an actor that was replaced has gone to another.
        """
        if not self._needed:
            return ""
        if not self._is_current(message.peer):
            return "the actor was replaced"
        found = message.weights_version
        return "" if found == version else f"weights of version {found}, expected {version}"

    def put(self, post: Post) -> None:
        """Takes a message, of an actor that waits for its answer from here on."""
        self._acting.discard(post.message.peer)
        self._held.append(post)

    def release(self, num_collected: int) -> Iterator[Post]:
        """The messages to answer, if the next batch has `num_collected` unrolls so far.

        An actor that was replaced does not act any more, so another takes its turn.
        """
        self._acting = {peer for peer in self._acting if self._is_current(peer)}
        while self._held and (not self._needed or num_collected + len(self._acting) < self._needed):
            post = self._held.popleft()
            if self._needed and self._is_current(post.message.peer):
                self._acting.add(post.message.peer)
            yield post

    def clear(self) -> list[Post]:
        """Forgets all actors; returns the messages that were not answered."""
        held = list(self._held)
        self._held.clear()
        self._acting.clear()
        return held
