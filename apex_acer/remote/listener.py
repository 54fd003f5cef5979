"""The socket on which a server listens, with limits on connections, and its TLS."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
import time
from collections import Counter
from pathlib import Path
from typing import Any

from websockets.asyncio.connection import Connection

from apex_acer.config import ConfigError, ListenConfig

UNAUTHENTICATED = 128  # connections that have not said hello, at most
PER_SECOND, BURST = 24.0, 64.0  # new connections without a good hello; the others wait in the kernel's queue
PAUSE_S = 0.5  # less than the second after which asyncio looks for connections again


class Allowance:
    """A token bucket: `per_second` tokens are added each second, up to `most`."""

    def __init__(self, per_second: float, most: float) -> None:
        self._per_second, self._left, self._most = per_second, most, most
        self._at = time.monotonic()

    @property
    def used_up(self) -> bool:
        """Whether there is less than one token."""
        now = time.monotonic()
        self._left = min(self._most, self._left + self._per_second * (now - self._at))
        self._at = now
        return self._left < 1

    def take(self) -> None:
        self._left -= 1

    def give_back(self) -> None:
        self._left += 1


class Listener(socket.socket):
    """A listening socket that limits the rate and number of connections before any handshake costs something."""

    def __init__(self, listening: socket.socket) -> None:
        super().__init__(fileno=listening.detach())
        self._allowance, self._pauses_until = Allowance(PER_SECOND, BURST), 0.0
        self._open: dict[Connection, int] = {}  # the descriptor of each
        self._unauthenticated: dict[int, tuple[socket.socket, bytes]] = {}  # socket and network by descriptor

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection; raises the error on which asyncio pauses if there were too many."""
        if time.monotonic() < self._pauses_until:  # asyncio asks again at once before it pauses
            raise BlockingIOError
        if self._allowance.used_up:
            self._pauses_until = time.monotonic() + PAUSE_S
            raise OSError(errno.ENOBUFS, "too many connections")
        accepted, address = super().accept()
        self._allowance.take()
        self._make_room()
        self._unauthenticated[accepted.fileno()] = accepted, network(address)
        return accepted, address

    def _make_room(self) -> None:
        """Ends the oldest unauthenticated connection of the network that has the most, if there are too many."""
        self._unauthenticated = {n: each for n, each in self._unauthenticated.items() if each[0].fileno() == n}
        if len(self._unauthenticated) < UNAUTHENTICATED:
            return
        greedy = Counter(network for _, network in self._unauthenticated.values()).most_common(1)[0][0]
        descriptor = next(n for n, (_, network) in self._unauthenticated.items() if network == greedy)
        accepted, _ = self._unauthenticated.pop(descriptor)
        for connection in [each for each, number in self._open.items() if number == descriptor]:
            connection.transport.abort()
        with contextlib.suppress(OSError):
            accepted.shutdown(socket.SHUT_RDWR)  # it may still be in its TLS handshake

    def opened(self, connection: Connection) -> None:
        self._open[connection] = connection.transport.get_extra_info("socket").fileno()

    def authenticated(self, connection: Connection) -> None:
        """Gives the token of a connection back, because its client has said a good hello."""
        if self._unauthenticated.pop(self._open.get(connection, -1), None):
            self._allowance.give_back()

    def closed(self, connection: Connection) -> None:
        self._open.pop(connection, None)

    def abort(self) -> None:
        for connection in list(self._open):
            connection.transport.abort()


def network(address: Any) -> bytes:
    """The part of an address that its owner cannot choose: an IPv4 address, or the first half of an IPv6 address."""
    if not isinstance(address, tuple):  # a Unix socket's
        return b""
    host = str(address[0]).partition("%")[0]
    return socket.inet_pton(socket.AF_INET6, host)[:8] if ":" in host else socket.inet_pton(socket.AF_INET, host)


def listen(settings: ListenConfig) -> Listener:
    """A socket at the address of `settings`; raises `ConfigError` if it cannot be opened."""
    try:
        family = socket.getaddrinfo(*settings.address, type=socket.SOCK_STREAM)[0][0]
        return Listener(socket.create_server(settings.address, family=family))
    except OSError as error:
        is_lookup = isinstance(error, socket.gaierror)
        reason = error.strerror if is_lookup or not error.errno else os.strerror(error.errno)
        key = f"{settings.section}.listen"
        raise ConfigError(f"{key}: {settings.listen!r}: {reason}; give an address and a free port") from None


def listen_at(path: Path) -> Listener:
    """A new Unix socket at `path`."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()
    return Listener(listening)


def tls_options(settings: ListenConfig, handshake_s: float) -> dict[str, Any]:
    """The TLS arguments of a server; empty without a certificate. Raises `ConfigError` if the files cannot be used."""
    if not settings.certificate:
        return {}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.certificate, settings.private_key)
    except (OSError, ssl.SSLError) as error:
        files = f"{settings.certificate!r} and {settings.private_key!r}"
        raise ConfigError(f"{settings.section}.certificate: {files} cannot be used ({error})") from None
    # A session ticket would reach a client while it sends its first request. One that reads and writes in two threads,
    # as apex_acer.client does through websockets, sometimes lost that request: OpenSSL allows one thread at a time.
    context.num_tickets = 0
    return {"ssl": context, "ssl_handshake_timeout": handshake_s}
