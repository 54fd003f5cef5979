"""A line between clients and a server that a test can cut, or hold for a while."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

CONNECT_S = 5.0
RESET = struct.pack("ii", 1, 0)  # of SO_LINGER: the connection ends without a farewell


class Proxy:
    """Listens on `port` of this machine, and passes on all to another one."""

    def __init__(self, target: int) -> None:
        """`target` is a port of this machine."""
        self._target = "127.0.0.1", target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.open = threading.Event()
        """While it is clear, nothing passes."""
        self.open.set()
        self._ends: set[socket.socket] = set()
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Breaks all connections without a word; later ones are possible at once."""
        for end in list(self._ends):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.open.set()
        self.cut()

    def _accept(self) -> None:
        while not self._closed:
            with contextlib.suppress(OSError):
                client = self._listener.accept()[0]
                try:
                    server = socket.create_connection(self._target, CONNECT_S)
                except OSError:
                    client.close()
                    continue
                for end in (client, server):
                    end.settimeout(None)
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._ends |= {client, server}
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.open.wait()
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()
        self._ends.discard(source)
