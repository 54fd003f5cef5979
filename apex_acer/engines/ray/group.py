"""Several learners as one role: their hosts live and die together, and the manager speaks with all of them at once."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from apex_acer.config import LearnerConfig, require
from apex_acer.engines.engine import Handle
from apex_acer.protocol.messages import Link, Message, Peer, Reply

LAST_WORDS_S = 1.0  # for the others to say why they ended, once one has ended badly


class GroupHandle(Handle):
    """The learners of a run; the first one's result is theirs, and one that is lost ends all."""

    def __init__(self, peer: Peer, members: Sequence[Handle]) -> None:
        super().__init__(peer)
        self._members = members
        self._alive, self._lost_at = True, 0.0

    @property
    def alive(self) -> bool:
        """Whether all of them work, or will."""
        self.listen()
        return self._alive

    @property
    def failure(self) -> str:
        """That of the one that failed first; the others could only tell that they have lost it."""
        failures = [member.failure for member in self._members if member.failure]
        return min(failures, key=lambda failure: "LearnerLost" in failure, default="")

    def listen(self) -> None:
        """Takes what there is to know, without waiting."""
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
        """Asks all of them where their threads are."""
        for member in self._members:
            member.dump()

    def kill(self) -> None:
        """Ends all of them."""
        for member in self._members:
            member.kill()
        self._alive = False


class GroupLink(Link):
    """The manager's link to all of them: each hears what it says, and their replies are one."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = links
        self._heard: list[deque[Reply]] = [deque() for _ in links]

    def send(self, message: Message) -> None:
        """Says it to all of them."""
        for link in self._links:
            link.send(message)

    def receive(self, timeout_s: float) -> Reply | None:
        """The next reply of all of them, or None after `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        for link, heard in zip(self._links, self._heard, strict=True):
            while not heard:
                reply = link.receive(max(0.0, deadline - time.monotonic()))
                if reply is None:
                    return None
                heard.append(reply)
        return merge([heard.popleft() for heard in self._heard])


def merge(replies: Sequence[Reply]) -> Reply:
    """The first one's reply with everybody's progress; the one that has gone round its loop least often counts for all."""
    first = replies[0]
    progress: dict[str, Any] = {}
    for reply in replies:
        progress |= reply.status.get("progress", {})
    if turns := [reply.status["progress"]["learner"] for reply in replies if "progress" in reply.status]:
        progress["learner"] = min(turns)
    refused = next((reply.refused for reply in replies if reply.refused), "")
    return Reply(first.sequence, first.stop, refused=refused, status={**first.status, "progress": progress})


def num_gpus(settings: LearnerConfig, gpus: float, at_home: float) -> int:
    """GPUs of each learner, of a cluster that has `gpus` in all and `at_home` on this machine, where the first one runs.

    Raises:
        ConfigError: where there are some, and not enough for all.
    """
    if settings.device == "cpu" or not at_home:
        return 0  # a learner that was to have one says itself what is missing
    enough = f"this cluster has {gpus:g} GPUs: give at most that, or learner.device cpu"
    require(settings.count <= gpus, "learner.count", settings.count, enough)
    return 1
