"""All sessions of a server, and the places that they have."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from apex_acer.config import ListenConfig
from apex_acer.remote.messages import BUSY, RemoteError
from apex_acer.remote.session import Event, Session


class Sessions:
    """Those that have not ended; each has a slot of its own, the lowest that was free."""

    def __init__(self, settings: ListenConfig, put: Callable[[Event], None]) -> None:
        """`put` takes the events of episodes that will not go on."""
        self._settings, self._put = settings, put
        self._sessions: dict[str, Session] = {}
        self._free = list(range(settings.clients))

    def find(self, wanted: str) -> Session:
        """The session of this id, or a new one if there is none; raises `RemoteError` if there is no place for it."""
        session = self._sessions.get(wanted)
        if session is None:
            session = Session(self._slot())
            self._sessions[session.id] = session
        return session

    def end(self, session: Session) -> None:
        """Ends a session, whose episode will not go on."""
        if session.ended:
            return
        if event := session.end():
            self._put(event)
        del self._sessions[session.id]
        heappush(self._free, session.slot)

    def connected(self) -> list[Session]:
        """Those that have a connection; also for other threads."""
        return [session for session in list(self._sessions.values()) if session.connection is not None]

    def _slot(self) -> int:
        """A free slot, if need be that of the client that has been away for longest."""
        if not self._free:
            away = [session for session in self._sessions.values() if session.connection is None]
            if not away:
                most, key = self._settings.clients, f"{self._settings.section}.clients"
                raise RemoteError(f"{most} clients are connected, {key} allows no more; try again later", BUSY)
            self.end(min(away, key=lambda session: session.away_since))
        return heappop(self._free)
