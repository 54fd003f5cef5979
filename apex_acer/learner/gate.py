"""When actors are answered, and so may act: at once, or only as far as the next batch needs their unrolls."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from apex_acer.protocol.inbox import Post
from apex_acer.protocol.messages import Peer


class Gate:
    """Holds the messages of actors until they may be answered.

    An actor makes one unroll for each answer. If actors wait for updates, as many are answered as the batch that is being
    collected still needs, so all of its unrolls are acted with the newest weights; the others are answered after the update.
    """

    def __init__(self, needed: int = 0) -> None:
        """`needed` is the number of unrolls in a batch; 0: actors do not wait."""
        self._needed = needed
        self._held: deque[Post] = deque()
        self._acting: set[Peer] = set()

    def put(self, post: Post) -> None:
        """Takes a message, of an actor that now waits for its answer."""
        self._acting.discard(post.message.peer)
        self._held.append(post)

    def pass_through(self, num_collected: int, is_current: Callable[[Peer], bool]) -> Iterator[Post]:
        """The messages to answer now, if the next batch has `num_collected` unrolls so far.

        An actor that was replaced does not act any more, so another takes its turn.
        """
        self._acting = {peer for peer in self._acting if is_current(peer)}
        while self._held and (not self._needed or num_collected + len(self._acting) < self._needed):
            post = self._held.popleft()
            if self._needed and is_current(post.message.peer):
                self._acting.add(post.message.peer)
            yield post

    def clear(self) -> list[Post]:
        """Forgets all actors; returns the messages that were not answered."""
        held = list(self._held)
        self._held.clear()
        self._acting.clear()
        return held
