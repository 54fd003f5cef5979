"""The server of remote clients: their connections in a thread, their requests in a queue."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import queue
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, PayloadTooBig, ProtocolError

from apex_acer.config import ListenConfig
from apex_acer.protocol.messages import Row
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.remote.connections import ClientsConnection, relay
from apex_acer.remote.listener import Listener, listen, tls_options
from apex_acer.remote.messages import (
    BUSY,
    SHORT,
    Hello,
    RemoteError,
    decode,
    encode,
    error_message,
    most_bytes,
    parse_hello,
    parse_request,
)
from apex_acer.remote.session import Event, Session, Sessions

log = logging.getLogger(__name__)

HELLO_S = 10.0  # for a client to say hello
PING_S = 10.0  # between two pings; a connection that has not answered one by then is closed
START_S = CLOSE_S = 10.0
CLOSE_MESSAGE_S = 1.0  # for clients to hear that the server ends and to close
MOST_REASON = 123  # bytes of text in a WebSocket's close
LATENCIES = 10_000  # that are kept
KINDS_LOGGED = 100  # of refusals, one line each
NO_LOG = logging.Logger("websockets", logging.CRITICAL + 1)  # it logs a traceback for each malformed handshake
NO_EVALUATOR = "clients with train = false are refused: the run evaluates in a local environment or not at all"


class Server:
    """A WebSocket server in a thread of its own, for clients whose environments have the spaces of `spec`."""

    def __init__(
        self,
        settings: ListenConfig,
        spec: EnvironmentSpec,
        token: str,
        *,
        listener: Listener | None = None,
        evaluator: Callable[[], Path] | None = None,
        evaluates: bool = True,
    ) -> None:
        """Listens, and raises `ConfigError` if it cannot.

        Args:
            settings: address, TLS and limits.
            spec: spaces that a client must name.
            token: word that a client must know.
            listener: socket to use instead of the address, without TLS; only this process's user may reach it.
            evaluator: path of a file with the address of the server for clients with `train = false`; None: this one.
            evaluates: whether clients with `train = false` are served at all.
        """
        self.spec, self.url = spec, settings.url
        self._settings, self._token, self._evaluator, self._evaluates = settings, token, evaluator, evaluates
        self._tls = {} if listener else tls_options(settings, HELLO_S)
        self._events: queue.SimpleQueue[list[Event]] = queue.SimpleQueue()  # those of a message together
        self._sessions = Sessions(settings, self._events.put)
        self._relayed: dict[ServerConnection, bool] = {}  # to the evaluator, and whether they speak JSON
        self._listener = listener or listen(settings)
        self._latencies: deque[float] = deque(maxlen=LATENCIES)
        self._logged: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()  # asyncio keeps only weak references
        self._loop = asyncio.new_event_loop()  # made here, so that it can be called from the start
        self._stopping, self._says_bye = asyncio.Event(), True
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="remote clients", daemon=True)
        self._thread.start()
        started.result(START_S)

    # ── for other threads ──

    def take(self, timeout_s: float) -> list[Event]:
        """The events since the last call, in their order; waits up to `timeout_s` seconds for the first."""
        events: list[Event] = []
        with contextlib.suppress(queue.Empty):
            events += self._events.get(timeout=timeout_s)
            while True:
                events += self._events.get_nowait()
        return events

    def answer(self, decisions: Iterable[tuple[Event, int | list[float]]]) -> None:
        """Sends the action for each event's observation, once there is one for all agents of its message."""
        self._call(self._deliver, list(decisions))

    def take_latencies(self) -> list[float]:
        """Seconds from request to action of each action since the last call, the newest 10,000 at most."""
        latencies, self._latencies = self._latencies, deque(maxlen=LATENCIES)
        return list(latencies)

    @property
    def most(self) -> int:
        """Largest number of clients, counted by their agents; their slots are below it."""
        return self._settings.clients

    @property
    def num(self) -> int:
        """Number of connected clients, counted by their agents."""
        return sum(len(session.slots) for session in self._sessions.connected())

    def metrics(self) -> Row:
        """Metrics of an actor about its clients."""
        return {"clients": self.num, "refused_clients": self._sessions.tallies.refused}

    def client_rows(self) -> dict[str, Row]:
        """Metrics since the last call of each client with a name, and of addresses at which others were refused."""
        return self._sessions.rows()

    def close(self, *, failed: bool = False) -> None:
        """Sends all clients the close message, unless the server's role has `failed` and a new one will serve them.

        Then ends the thread.
        """
        self._says_bye = not failed
        self._call(self._stopping.set)
        self._thread.join(CLOSE_S)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the thread has ended
            self._loop.call_soon_threadsafe(function, *arguments)

    # ── in the thread ──

    def _run(self, started: Future[None]) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve(started))
        except Exception as error:
            if started.done():
                raise
            started.set_exception(error)

    async def _serve(self, started: Future[None]) -> None:
        self._loop.set_exception_handler(self._note_error)
        async with serve(
            self._welcome_and_hear,
            sock=self._listener,
            **self._tls,
            compression=None,
            open_timeout=HELLO_S,
            ping_interval=PING_S,
            ping_timeout=PING_S,
            max_size=most_bytes(self.spec),
            logger=NO_LOG,
            create_connection=functools.partial(ClientsConnection, self._listener),  # type: ignore[arg-type]
        ) as server:
            started.set_result(None)
            await self._stopping.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_MESSAGE_S):
                    clients = {session.connection: session.text for session in self._sessions.connected()}
                    if self._says_bye:
                        await asyncio.gather(*(self._say_bye(*each) for each in (clients | self._relayed).items()))
                    server.close()
                    await server.wait_closed()
            self._listener.abort()
            self._sessions.close()

    async def _welcome_and_hear(self, connection: Any) -> None:
        data: str | bytes = ""
        name = ""
        try:
            try:
                async with asyncio.timeout(HELLO_S):
                    data = await connection.recv()
            except TimeoutError:
                raise RemoteError(f"no hello within {HELLO_S:g} s") from None
            connection.protocol.text = isinstance(data, str)
            self._require_origin(connection)
            hello = parse_hello(decode(data), self.spec, self._token)
            name = hello.name
            self._listener.authenticated(connection)
            if not hello.train and not self._evaluates:
                raise RemoteError(NO_EVALUATOR)
            connection.protocol.max_message_size = most_bytes(self.spec, min(hello.agents or 1, self.most))
            if hello.train or self._evaluator is None:
                await self._attend(connection, self._admit(hello, connection, text=isinstance(data, str)))
            else:
                self._relayed[connection] = isinstance(data, str)
                await relay(connection, data, self._evaluator(), logger=NO_LOG)
        except RemoteError as error:
            await self._refuse(connection, error, name or error.name, text=isinstance(data, str))
        except ConnectionClosed:
            if isinstance(broken := connection.protocol.parser_exc, ProtocolError | PayloadTooBig):
                self._note_refusal(connection, name, str(broken))
        finally:
            self._relayed.pop(connection, None)

    def _require_origin(self, connection: ServerConnection) -> None:
        """Refuses a web page of another origin; after the handshake, because browsers hide why a handshake failed."""
        origin = connection.request.headers.get("Origin") if connection.request else None
        if origin is not None and origin not in self._settings.origins:
            raise RemoteError(f"origin {SHORT.repr(origin)} is not among {self._settings.section}.origins")

    async def _attend(self, connection: ServerConnection, session: Session) -> None:
        """Sends the welcome and an answer that was missed, then takes messages until the session or connection ends."""
        try:
            await connection.send(self._welcome(session))
            if session.answer is not None:
                await connection.send(session.answer)
            async for data in connection:
                if session.connection is not connection:  # the client sends this again on its new one
                    return
                if not self._hear(session, data):
                    self._sessions.end(session)
                    return
        except RemoteError:
            if session.connection is connection:  # otherwise the client has another one, on which it did nothing wrong
                self._sessions.end(session)
            raise
        finally:
            if session.connection is connection and not session.ended:
                session.leave()
                session.cancel_end = self._loop.call_later(self._settings.grace_s, self._sessions.end, session).cancel

    def _admit(self, hello: Hello, connection: ServerConnection, *, text: bool) -> Session:
        session = self._sessions.find(hello)
        if session.connection is not None:  # the old connection may be broken without anybody knowing
            self._later(session.connection.close(reason="the client has connected again"))
        session.arrive(connection, text=text)
        return session

    def _hear(self, session: Session, data: str | bytes) -> bool:
        """Takes a message; returns whether more may follow."""
        events = session.take(parse_request(decode(data), self.spec, session.agents))
        if events is None:
            return False
        self._events.put(events)
        if session.answer is not None:
            self._later(self._send(session))
        return True

    def _deliver(self, decisions: list[tuple[Event, int | list[float]]]) -> None:
        for (session, slot, *_), action in decisions:
            session.decide(slot, action)
            self._latencies.append(time.perf_counter() - session.asked_at)
            if session.answer is not None:
                self._later(self._send(session))

    async def _send(self, session: Session) -> None:
        if session.connection is not None and session.answer is not None:
            with contextlib.suppress(ConnectionClosed):
                await session.connection.send(session.answer)

    async def _refuse(self, connection: ServerConnection, error: RemoteError, name: str, *, text: bool) -> None:
        line = str(error).replace(self._token, "…")  # a client may put it anywhere
        self._note_refusal(connection, name, line)
        with contextlib.suppress(ConnectionClosed):
            await connection.send(error_message(line, retry=error.code == BUSY, text=text))
            await connection.close(error.code, line.encode()[:MOST_REASON].decode(errors="ignore"))

    def _note_refusal(self, connection: ServerConnection, name: str, line: str) -> None:
        """Counts and logs a refusal by the client's name or, without one, by its address."""
        peer = connection.remote_address
        address = str(peer[0]) if isinstance(peer, tuple) else "local"
        self._sessions.tallies.refuse(name, address)
        self._log_once(line, f"client {name!r}" if name else f"a client at {address}", name)

    def _log_once(self, line: str, who: str = "a client", name: str = "") -> None:
        """Logs why a client was refused, once for each `name` and lines that differ only in numbers and quoted words."""
        kind = name + re.sub(r"[\d.]+|'.*'", "", line)
        if kind not in self._logged and len(self._logged) < KINDS_LOGGED:
            self._logged.add(kind)
            log.warning("refused %s: %s", who, line)

    def _note_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Logs an error of asyncio's in one line, without the traceback."""
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno == errno.ENOBUFS):  # the listener pauses
            self._log_once(f"{context['message']} {error!r}")

    async def _say_bye(self, connection: ServerConnection, text: bool) -> None:
        with contextlib.suppress(ConnectionClosed):
            await connection.send(encode({"type": "bye", "message": "the run has ended"}, text=text))

    def _welcome(self, session: Session) -> str | bytes:
        version = 1 if session.agents is None else 2
        values = {"type": "welcome", "version": version, "session": session.id, "sequence": session.sequence}
        return encode(values, text=session.text)

    def _later(self, coroutine: Any) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
