"""Connections of websockets with limits that it lacks: on small frames, and on the time that a peer takes to read."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, ProtocolError
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import SEND_EOF, State
from websockets.server import ServerProtocol

from apex_acer.remote.listener import Allowance, Listener
from apex_acer.remote.messages import BUSY, RemoteError, error_message

WRITE_S = 10.0  # for a peer to read what it was sent
LINGER_S, LINGER_BYTES = 2.0, 1 << 20  # that a peer may go on sending after it broke a rule of WebSocket's
SMALL_BYTES = 126  # a control frame has fewer
SMALL_PER_SECOND, SMALL_BURST = 10.0, 10.0  # control frames and other small frames that end no message


class Protocol(ServerProtocol):
    """RFC 6455 on the server's side, with a limit on small frames and an error message for a message too large."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.text = True
        """Whether the peer speaks JSON."""
        self._allowance = Allowance(SMALL_PER_SECOND, SMALL_BURST)

    def recv_frame(self, frame: Frame) -> None:
        """Takes a frame; whole messages need no limit, because each must wait for its answer."""
        ends_message = frame.fin and frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)
        if not ends_message and len(frame.data) < SMALL_BYTES:
            if self._allowance.used_up:
                raise ProtocolError(f"more than {SMALL_PER_SECOND:g} pings or small fragments per second")
            self._allowance.take()
        super().recv_frame(frame)

    def fail(self, code: int, reason: str = "") -> None:
        """Closes because of what the peer sent, and says why if it was too large."""
        if code == CloseCode.MESSAGE_TOO_BIG and self.state is State.OPEN:
            line = f"a message is too large; require at most {self.max_message_size} bytes"
            data = error_message(line, text=self.text)
            self.send_text(data.encode()) if isinstance(data, str) else self.send_binary(data)
        super().fail(code, reason)

    def send_eof(self) -> None:
        """Ends the stream once, even if a bad handshake and a bad frame come together."""
        if not self.eof_sent:
            super().send_eof()

    def data_to_send(self) -> list[bytes]:
        """The bytes to send in one piece, and the end of the stream if it is due."""
        data = super().data_to_send()
        joined = b"".join(data)
        return [*([joined] if joined else []), *([SEND_EOF] if SEND_EOF in data else [])]


class _PatientConnection(Connection):
    """A connection that is aborted if its peer does not read for 10 s, so that sends and closes come to an end."""

    _deadline: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._deadline = self.loop.call_later(WRITE_S, self.transport.abort)

    def resume_writing(self) -> None:
        self._end_deadline()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_deadline()
        super().connection_lost(exc)

    def _end_deadline(self) -> None:
        if self._deadline:
            self._deadline.cancel()


class RelayConnection(_PatientConnection, ClientConnection):
    """A connection to another server."""


class ClientsConnection(_PatientConnection, ServerConnection):
    """A client's connection, counted by the `listener` while it is open."""

    protocol: Protocol

    def __init__(self, listener: Listener, protocol: ServerProtocol, *arguments: Any, **options: Any) -> None:
        limited = Protocol(max_size=protocol.max_message_size, logger=protocol.logger)
        super().__init__(limited, *arguments, **options)
        self._listener, self._dropped_bytes = listener, 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._listener.opened(self)

    def data_received(self, data: bytes) -> None:
        """Takes bytes; after a broken rule, aborts the connection in 2 s or after 1 MiB."""
        super().data_received(data)
        if self.protocol.parser_exc is None:
            return
        if not self._dropped_bytes:
            self.loop.call_later(LINGER_S, self.transport.abort)
        self._dropped_bytes += len(data)  # a peer may lose the line that says why if the server does not read at all
        if self._dropped_bytes > LINGER_BYTES:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.closed(self)
        super().connection_lost(exc)


async def relay(client: ServerConnection, hello: str | bytes, address: Path, **options: Any) -> None:
    """Passes messages between the `client` and another server of this machine until one of them leaves.

    The server is at the Unix socket whose path is in the file `address`. Raises `RemoteError` if it cannot be reached.
    """
    options |= {"compression": None, "max_size": None, "create_connection": RelayConnection}
    try:
        async with unix_connect(address.read_text(), **options) as server:
            await server.send(hello)
            tasks = [asyncio.ensure_future(each) for each in (_pass_on(client, server), _pass_on(server, client))]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
    except (OSError, InvalidHandshake, InvalidMessage):
        raise RemoteError("the evaluator is not there yet; try again later", BUSY) from None


async def _pass_on(source: Any, target: Any) -> None:
    with contextlib.suppress(ConnectionClosed):
        async for data in source:
            await target.send(data)
