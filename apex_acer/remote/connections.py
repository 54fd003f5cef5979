"""A server's connections, from the first byte on: limited before they say anything, and broken if they do not end."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

from websockets.asyncio.server import ServerConnection

STRANGERS = 64  # connections that have not said hello, at most
PER_SECOND = 64.0  # new connections


class Connections:
    """All that are open, and those of them that have not said hello."""

    def __init__(self) -> None:
        self._open: dict[ServerConnection, asyncio.Transport] = {}
        self._strangers: set[ServerConnection] = set()
        self._allowance, self._allowed_at = PER_SECOND, 0.0

    def make(self, *arguments: Any, **options: Any) -> ServerConnection:
        """A connection that is kept here; websockets makes one for each that comes."""
        return _Connection(self, *arguments, **options)

    def add(self, connection: ServerConnection, transport: asyncio.Transport) -> None:
        """Takes a new one, or breaks it if there are too many strangers."""
        if len(self._strangers) >= STRANGERS:
            transport.abort()
            return
        self._open[connection] = transport
        self._strangers.add(connection)

    def allow_one(self) -> bool:
        """Whether another connection may begin, so that there are `PER_SECOND` in the long run."""
        now = time.monotonic()
        self._allowance = min(PER_SECOND, self._allowance + PER_SECOND * (now - self._allowed_at)) - 1
        self._allowed_at = now
        allowed = self._allowance >= 0
        self._allowance = max(self._allowance, 0.0)
        return allowed

    def introduce(self, connection: ServerConnection) -> None:
        """It has said hello, or lost its time for that."""
        self._strangers.discard(connection)

    def remove(self, connection: ServerConnection) -> None:
        """It has ended."""
        self._open.pop(connection, None)
        self._strangers.discard(connection)

    def abort(self) -> None:
        """Breaks all."""
        for transport in list(self._open.values()):
            transport.abort()


class _Connection(ServerConnection):
    def __init__(self, connections: Connections, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connections.add(self, cast(asyncio.Transport, transport))

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.remove(self)
        super().connection_lost(exc)
