"""Several learners as one role: they live and die together, and the manager talks to all of them as to one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from apex_acer.engines.engine import Handle
from apex_acer.protocol.messages import Link, Message, Peer, Reply

LAST_WORDS_S = 1.0  # in which the others report why they ended, once one has ended badly


class GroupHandle(Handle):
    """The learners of a run. Their result is the first one's; if one is lost, all of them end."""

    def __init__(self, peer: Peer, members: Sequence[Handle]) -> None:
        super().__init__(peer)
        self._members = members
        self._alive, self._lost_at = True, 0.0

    @property
    def alive(self) -> bool:
        """Whether all of them run, or are being started."""
        self.listen()
        return self._alive

    @property
    def failure(self) -> str:
        """The failure of the learner that failed first; those of the others only say that they lost it."""
        failures = [member.failure for member in self._members if member.failure]
        return min(failures, key=lambda failure: "LearnerLost" in failure, default="")

    def listen(self) -> None:
        """Notices what has happened, without waiting."""
        if not self._alive:
            return
        ended = [member for member in self._members if not member.alive]
        self.ready = all(member.ready for member in self._members)
        self.result = self._members[0].result
        self.config_error = next((member.config_error for member in ended if member.config_error), "")
        self.raised = next((member.raised for member in ended if member.raised), "")
        if len(ended) == len(self._members):
            self._alive = False
        elif any(member.failure or member.config_error for member in ended):
            self._lost_at = self._lost_at or time.monotonic()
            if time.monotonic() > self._lost_at + LAST_WORDS_S:
                self.kill()

    def dump(self) -> None:
        """Asks each of them to log where its threads are."""
        for member in self._members:
            member.dump()

    def dismiss(self) -> None:
        """Does nothing: learners end once they have saved."""

    def kill(self) -> None:
        """Kills all of them."""
        for member in self._members:
            member.kill()
        self._alive = False


class GroupLink(Link):
    """The manager's link to all learners: each gets every message, and their replies are merged."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = links
        self._heard: list[deque[Reply]] = [deque() for _ in links]

    def send(self, message: Message) -> None:
        """Sends `message` to each learner."""
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
