"""`python -m checks.chaos.floods KIND PORT`: peers without the token that flood a server until they are killed."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable

from websockets.frames import Frame, Opcode

RESET = struct.pack("ii", 1, 0)  # of SO_LINGER: the connection ends without a farewell
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
PINGS = Frame(Opcode.PING, b"").serialize(mask=True) * 10_000
FULL_PINGS = Frame(Opcode.PING, b"x" * 125).serialize(mask=True) * 500
FRAGMENTS = Frame(Opcode.CONT, b"", fin=False).serialize(mask=True) * 10_000
BEGUN = Frame(Opcode.TEXT, b"", fin=False).serialize(mask=True)
THREADS, SILENT = 4, 200
TIMEOUT_S = 20.0


def pings(stream: socket.socket) -> None:
    """Pings at full speed, whose answers are read."""
    shake_hands(stream)
    stream.setblocking(False)
    while True:
        with contextlib.suppress(BlockingIOError):
            while True:
                stream.send(PINGS)
        with contextlib.suppress(BlockingIOError):
            if not stream.recv(1 << 20):
                return


def deaf(stream: socket.socket) -> None:
    """Pings whose answers nobody reads."""
    shake_hands(stream)
    while True:
        stream.sendall(FULL_PINGS)


def fragments(stream: socket.socket) -> None:
    """A message that never ends."""
    shake_hands(stream)
    stream.sendall(BEGUN)
    while True:
        stream.sendall(FRAGMENTS)


def resets(stream: socket.socket) -> None:
    """Pings, and a connection that is broken while they are answered."""
    shake_hands(stream)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    stream.sendall(PINGS[:1000])


def drips(stream: socket.socket) -> None:
    """A handshake of one byte per second."""
    for at in itertools.count():
        stream.sendall(UPGRADE[at : at + 1])
        time.sleep(1)


def silence(stream: socket.socket) -> None:
    """Nothing."""
    while stream.recv(1):
        pass


KINDS: dict[str, Callable[[socket.socket], None]] = {
    each.__name__: each for each in (pings, deaf, fragments, resets, drips, silence)
}


def shake_hands(stream: socket.socket) -> None:
    """Makes it a WebSocket."""
    stream.sendall(UPGRADE)
    if not stream.recv(4096):
        raise ConnectionError


def flood(kind: str, port: int) -> None:
    """One connection after the other."""
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as stream:
            KINDS[kind](stream)


def main(kind: str, port: str) -> None:
    os.nice(19)  # what it costs to make a flood is not what it does to the server
    count = SILENT if kind in ("drips", "silence") else THREADS
    for _ in range(count):
        threading.Thread(target=flood, args=(kind, int(port)), daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
