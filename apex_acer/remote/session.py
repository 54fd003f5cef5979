"""Sessions of clients: the order of their messages through all connections that they make, and their slots."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple

from apex_acer.config import ListenConfig
from apex_acer.protocol.messages import Row
from apex_acer.remote.messages import BUSY, ENDS, WAIT, Hello, Observation, RemoteError, Request, encode
from apex_acer.remote.tally import Tallies, Tally

LOST = "lost"
log = logging.getLogger(__name__)


class Event(NamedTuple):
    """A step of an agent's environment, or that the agent has gone."""

    session: Session
    slot: int
    """The agent's."""
    kind: str
    """`reset`, `step`, `terminated`, `truncated`, or `LOST`: its episode did not end and will not go on."""
    obs: Observation | None
    """`[*given_shape]`, or an array of each part by name; None if `kind` is `LOST`."""
    reward: float


class Session:
    """One client, from its first `hello` to its `bye`, or until it has been away for too long. Each agent has a slot."""

    def __init__(
        self, slots: Sequence[int], agents: int | None = None, name: str = "", tally: Tally | None = None
    ) -> None:
        """`agents` is their number in version 2, None in version 1; `name` is the client's (`Hello`)."""
        self.id, self.slots, self.agents, self.name = secrets.token_hex(16), tuple(slots), agents, name
        self.tally = tally or Tally()
        self.text = True  # whether it speaks JSON
        self.sequence = -1  # of the newest message
        self.connection: Any = None  # None while it is away
        self.ended = False
        self.away_since = 0.0  # monotonic seconds
        self.cancel_end: Callable[[], None] | None = None  # of the timer that ends it while it is away
        self.asked_at = 0.0  # seconds of `time.perf_counter`
        self.answer: str | bytes | None = None  # to the newest message; None until there is one
        self._playing: set[int] = set()  # slots whose episode has begun and not ended
        self._asking: set[int] = set()  # slots that wait for an action
        self._actions: dict[int, Any] = {}  # by slot, for the newest message
        self._began, self._steps = time.monotonic(), 0
        self._returns = dict.fromkeys(slots, 0.0)  # so far of each slot's episode
        self._episodes, self._sum = 0, 0.0  # episodes that have ended, and the sum of their returns

    def take(self, request: Request) -> list[Event] | None:
        """The events of the next message, None for `bye`; raises `RemoteError` for a message out of order."""
        kind, sequence, steps = request
        if self.sequence >= 0 and self.answer is None and kind != "bye":
            raise RemoteError(f"{kind} came before the answer to message {self.sequence}")
        if sequence != self.sequence + 1:
            raise RemoteError(f"{kind} has sequence {sequence}, expected {self.sequence + 1}")
        if kind == "bye":
            return None
        events = [Event(self, slot, *step) for slot, step in zip(self.slots, steps, strict=True) if step.kind != WAIT]
        for event in events:
            self._require_turn(event)
        for event in events:
            self._count(event)
        self._asking = {event.slot for event in events if event.kind in ("reset", "step")}
        self._playing = self._playing - {event.slot for event in events} | self._asking
        self.sequence += 1
        self.asked_at = time.perf_counter()
        self.answer, self._actions = None, {}
        self._answer_if_decided()
        return events

    def decide(self, slot: int, action: int | list[int] | list[float]) -> None:
        """Notes an agent's action, the last of which answers the newest message."""
        self._actions[slot] = action
        self._asking.discard(slot)
        self._answer_if_decided()

    def summary(self) -> str:
        """The client's agents, steps, rate and mean return since it first came, in one line."""
        rate = self._steps / max(1e-9, time.monotonic() - self._began)
        mean = (
            f", mean return {self._sum / self._episodes:.1f} of {self._episodes:,} episodes" if self._episodes else ""
        )
        return f"{len(self.slots)} agents, {self._steps:,} steps, {rate:,.0f}/s{mean}"

    def _count(self, event: Event) -> None:
        begins, slot = event.kind == "reset", event.slot
        self._steps += not begins
        self.tally.steps += not begins
        self._returns[slot] = event.reward + (0.0 if begins else self._returns[slot])
        if event.kind in ENDS:
            self._episodes, self._sum = self._episodes + 1, self._sum + self._returns[slot]
            self.tally.end_episode(self._returns[slot])

    def _require_turn(self, event: Event) -> None:
        """Raises `RemoteError` if an agent's episode begins before the last one has ended, or goes on after that."""
        is_playing = event.slot in self._playing
        if (event.kind == "reset") == is_playing:
            whose = "" if self.agents is None else f" of agent {self.slots.index(event.slot)}"
            hint = "during an episode; send terminated or truncated" if is_playing else "outside an episode; send reset"
            raise RemoteError(f"{event.kind}{whose} came {hint} first")

    def _answer_if_decided(self) -> None:
        if self._asking:
            return
        values: dict[str, Any] = {"type": "actions", "sequence": self.sequence}
        if self.agents is not None:
            values["actions"] = [self._actions.get(slot) for slot in self.slots]
        elif self._actions:
            values |= {"type": "action", "action": self._actions[self.slots[0]]}
        else:
            values["type"] = "ended"
        self.answer = encode(values, text=self.text)

    def arrive(self, connection: Any, *, text: bool) -> None:
        if self.cancel_end:
            self.cancel_end()
        self.connection, self.text = connection, text

    def leave(self) -> None:
        self.connection, self.away_since = None, time.monotonic()

    def end(self) -> list[Event]:
        """Ends the session; returns an event for each episode that had not ended."""
        self.ended, playing, self._playing = True, self._playing, set()
        self.connection = None
        if self.cancel_end:
            self.cancel_end()
        return [Event(self, slot, LOST, None, 0.0) for slot in sorted(playing)]


class Sessions:
    """The sessions that have not ended; a new one gets the lowest free slots, one for each agent."""

    def __init__(self, settings: ListenConfig, put: Callable[[list[Event]], None]) -> None:
        """`put` takes the events of the episodes that are lost."""
        self._settings, self._put = settings, put
        self._sessions: dict[str, Session] = {}
        self._free = list(range(settings.clients))
        self.tallies = Tallies()

    def find(self, hello: Hello) -> Session:
        """The session that `hello` wants or, if there is none, a new one for its agents.

        Raises `RemoteError` if there are too few slots, or if the session has another number of agents.
        """
        agents, session = hello.agents, self._sessions.get(hello.session)
        if session is None:
            slots, name = self._slots(1 if agents is None else agents), hello.name
            session = Session(slots, agents, name, self.tallies.of(name))
            self._sessions[session.id] = session
            if session.name:
                log.info("client %r has come with %d agents", session.name, agents)
        elif session.agents != agents:
            raise RemoteError(f"hello is of {_form(agents)}, but its session is of {_form(session.agents)}")
        return session

    def end(self, session: Session) -> None:
        """Ends a session; episodes that have not ended are lost."""
        if session.ended:
            return
        if events := session.end():
            self._put(events)
        self._tell(session)
        del self._sessions[session.id]
        for slot in session.slots:
            heappush(self._free, slot)

    def close(self) -> None:
        """Logs what the clients have done, as the server ends."""
        for session in self._sessions.values():
            self._tell(session)
        if refusals := self.tallies.refusals():
            log.info("refused clients: %s", refusals)

    def _tell(self, session: Session) -> None:
        if session.name:
            log.info("client %r has left: %s", session.name, session.summary())

    def connected(self) -> list[Session]:
        """The sessions that have a connection; other threads may call this."""
        return [session for session in list(self._sessions.values()) if session.connection is not None]

    def rows(self) -> dict[str, Row]:
        """`Tallies.rows` of the clients that are connected; another thread may call this."""
        return self.tallies.rows((session.tally, len(session.slots)) for session in self.connected())

    def _slots(self, num: int) -> list[int]:
        """The `num` lowest free slots; if too few are free, the clients that have been away for longest lose theirs."""
        most, key = self._settings.clients, f"{self._settings.section}.clients"
        if num > most:
            raise RemoteError(f"agents is {num}, {key} allows {most}")
        away = [session for session in self._sessions.values() if session.connection is None]
        away.sort(key=lambda session: session.away_since)
        room = len(self._free) + sum(len(session.slots) for session in away)
        if num > room:
            line = f"{most - room} clients are connected, {key} allows {room or 'no'} more; try again later"
            raise RemoteError(line, BUSY)
        while len(self._free) < num:
            self.end(away.pop(0))
        return [heappop(self._free) for _ in range(num)]


def _form(agents: int | None) -> str:
    return "version 1" if agents is None else f"version 2 with {agents} agents"
