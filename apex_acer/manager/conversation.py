"""The manager's conversation with one learner: what it has asked and announced, and what was answered."""

from __future__ import annotations

import time

from apex_acer.engines.engine import Engine
from apex_acer.protocol.messages import Message, Peer, Reply

LOOK_S = 0.5  # between two questions to the learner


class Conversation:
    """With one incarnation of the learner; the next one gets a conversation of its own."""

    def __init__(self, run_id: str, engine: Engine) -> None:
        self._run_id, self._engine = run_id, engine
        self.known: dict[str, int] = {}  # incarnations of the other processes that the learner has acknowledged ...
        self.known_at = 0.0  # ... and the monotonic seconds at which they were sent to it
        self._sent: dict[str, int] = {}
        self._sent_at = 0.0
        self._messages = self._unanswered = 0
        self._met = False

    def begin(self, incarnations: dict[str, int]) -> None:
        """Notes that the learner was started with these `incarnations` of the others."""
        self.known, self.known_at = incarnations, time.monotonic()

    def send(self, incarnations: dict[str, int], stop: str = "") -> None:
        """Asks for the learner's status and announces `incarnations`; a `stop` reason ends the run."""
        self._sent, self._sent_at = incarnations, time.monotonic()
        message = Message(self._run_id, Peer("manager", 0, 0), self._messages, stop=stop, incarnations=incarnations)
        self._engine.link.send(message)
        self._messages += 1
        self._unanswered += 1

    def send_if_due(self, incarnations: dict[str, int]) -> None:
        """Sends once everything is answered and `LOOK_S` has passed, or at once if `incarnations` have changed."""
        is_time = time.monotonic() >= self._sent_at + LOOK_S
        if not self._unanswered and (is_time or self._sent != incarnations):
            self.send(incarnations)

    def receive(self) -> list[Reply]:
        """The replies that have come; at the first one, the other processes are told of this learner."""
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
            self.known, self.known_at = self._sent, self._sent_at
        return replies
