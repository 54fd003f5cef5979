"""Sessions of clients: the order of their messages through all connections that they make, and their slots."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, NamedTuple

from apex_acer.config import ListenConfig
from apex_acer.remote.messages import BUSY, Observation, RemoteError, Request, encode

LOST = "lost"


class Event(NamedTuple):
    """A step of a client's environment, or that the client has gone."""

    session: Session
    kind: str
    """`reset`, `step`, `terminated`, `truncated`, or `LOST`: its episode did not end and will not go on."""
    obs: Observation | None
    """`[*given_shape]`, or an array of each part by name; None if `kind` is `LOST`."""
    reward: float


class Session:
    """One client, from its first `hello` to its `bye`, or until it has been away for too long."""

    def __init__(self, slot: int) -> None:
        self.id, self.slot = secrets.token_hex(16), slot
        self.text = True  # whether it speaks JSON
        self.sequence = -1  # of the newest message
        self.connection: Any = None  # None while it is away
        self.ended = False
        self.away_since = 0.0  # monotonic seconds
        self.cancel_end: Callable[[], None] | None = None  # of the timer that ends it while it is away
        self.asked_at = 0.0  # seconds of `time.perf_counter`
        self.answer: str | bytes | None = None  # to the newest message; None until there is one
        self._playing = False  # whether an episode has begun and not ended

    def take(self, request: Request) -> Event | None:
        """The event of the next message, None for `bye`; raises `RemoteError` for a message out of order."""
        if self.sequence >= 0 and self.answer is None and request.kind != "bye":
            raise RemoteError(f"{request.kind} came before the answer to message {self.sequence}")
        if request.sequence != self.sequence + 1:
            raise RemoteError(f"{request.kind} has sequence {request.sequence}, expected {self.sequence + 1}")
        if request.kind == "bye":
            return None
        if (request.kind == "reset") == self._playing:
            hint = (
                "during an episode; send terminated or truncated" if self._playing else "outside an episode; send reset"
            )
            raise RemoteError(f"{request.kind} came {hint} first")
        self._playing = request.kind in ("reset", "step")
        self.sequence += 1
        self.asked_at = time.perf_counter()
        self.answer = None if self._playing else encode({"type": "ended", "sequence": self.sequence}, text=self.text)
        return Event(self, request.kind, request.obs, request.reward)

    def decide(self, action: int | list[int] | list[float]) -> None:
        """Answers the newest message with an action."""
        self.answer = encode({"type": "action", "sequence": self.sequence, "action": action}, text=self.text)

    def arrive(self, connection: Any, *, text: bool) -> None:
        if self.cancel_end:
            self.cancel_end()
        self.connection, self.text = connection, text

    def leave(self) -> None:
        self.connection, self.away_since = None, time.monotonic()

    def end(self) -> Event | None:
        """Ends the session; returns the event of its episode unless that had ended."""
        self.ended, playing, self._playing = True, self._playing, False
        self.connection = None
        if self.cancel_end:
            self.cancel_end()
        return Event(self, LOST, None, 0.0) if playing else None


class Sessions:
    """The sessions that have not ended; a new one gets the lowest free slot."""

    def __init__(self, settings: ListenConfig, put: Callable[[Event], None]) -> None:
        """`put` takes the event of each episode that is lost."""
        self._settings, self._put = settings, put
        self._sessions: dict[str, Session] = {}
        self._free = list(range(settings.clients))

    def find(self, wanted: str) -> Session:
        """The session of this id or, if there is none, a new one; raises `RemoteError` if all clients are connected."""
        session = self._sessions.get(wanted)
        if session is None:
            session = Session(self._slot())
            self._sessions[session.id] = session
        return session

    def end(self, session: Session) -> None:
        """Ends a session; an episode that has not ended is lost."""
        if session.ended:
            return
        if event := session.end():
            self._put(event)
        del self._sessions[session.id]
        heappush(self._free, session.slot)

    def connected(self) -> list[Session]:
        """The sessions that have a connection; other threads may call this."""
        return [session for session in list(self._sessions.values()) if session.connection is not None]

    def _slot(self) -> int:
        """The lowest free slot; without one, the client that has been away for longest loses its slot."""
        if not self._free:
            away = [session for session in self._sessions.values() if session.connection is None]
            if not away:
                most, key = self._settings.clients, f"{self._settings.section}.clients"
                raise RemoteError(f"{most} clients are connected, {key} allows no more; try again later", BUSY)
            self.end(min(away, key=lambda session: session.away_since))
        return heappop(self._free)
