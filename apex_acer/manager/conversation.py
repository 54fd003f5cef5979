"""The manager's conversation with one learner: what it was asked and told, and what it has answered."""

from __future__ import annotations

import time

from apex_acer.engines.engine import Engine
from apex_acer.protocol.messages import Message, Peer, Reply

LOOK_S = 0.5  # between two questions to the learner


class Conversation:
    """With one learner, from before its start to its end; the next learner has a conversation of its own."""

    def __init__(self, run_id: str, engine: Engine) -> None:
        self._run_id, self._engine = run_id, engine
        self.known: dict[str, int] = {}
        """Incarnations of the others that the learner has taken in ..."""
        self.known_at = 0.0
        """... when it was told them at these monotonic seconds."""
        self._told: dict[str, int] = {}
        self._told_at = 0.0
        self._said = self._unanswered = 0
        self._met = False

    def begin(self, incarnations: dict[str, int]) -> None:
        """The learner was started, and expects the others in these incarnations."""
        self.known, self.known_at = incarnations, time.monotonic()

    def say(self, incarnations: dict[str, int], stop: str = "") -> None:
        """Asks for the learner's status, tells it who is whose successor, and, if given, why to `stop`."""
        self._told, self._told_at = incarnations, time.monotonic()
        message = Message(self._run_id, Peer("manager", 0, 0), self._said, stop=stop, incarnations=incarnations)
        self._engine.link.send(message)
        self._said += 1
        self._unanswered += 1

    def ask(self, incarnations: dict[str, int]) -> None:
        """Says as much once the last question is answered and it is time for another, or there is something to tell."""
        is_time = time.monotonic() >= self._told_at + LOOK_S
        if not self._unanswered and (is_time or self._told != incarnations):
            self.say(incarnations)

    def hear(self) -> list[Reply]:
        """The replies that have come; the others meet the learner at its first one."""
        replies = []
        while reply := self._engine.link.receive(0):
            if reply.refused:
                raise RuntimeError(f"the learner refused the manager's message: {reply.refused}")
            replies.append(reply)
            self._unanswered -= 1
        if replies and not self._met:
            self._engine.reconnect()
            self._met = True
        if replies and not self._unanswered:
            self.known, self.known_at = self._told, self._told_at
        return replies
