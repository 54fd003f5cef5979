from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.sync.server import ServerConnection
from websockets.sync.server import serve as serve_script

from apex_acer.config import ListenConfig
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.remote.listener import Listener
from apex_acer.remote.server import Server
from apex_acer.remote.session import LOST, Event
from tests.programs import eventually
from tests.runs import CARTPOLE

TOKEN = "open sesame"
HELLO: dict[str, Any] = {
    "type": "hello",
    "version": 1,
    "token": TOKEN,
    "observation": {"shape": [4], "dtype": "float32"},
    "action": {"n": 2},
}
OBS = [0.0, 1.0, 2.0, 3.0]


def free_port() -> int:
    """A port that nobody uses."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


class Acting:
    """Answers every request of a server: with the parity of the first number of its observation."""

    def __init__(self, server: Server) -> None:
        self.server, self.events = server, list[Event]()
        self.holds = False  # whether it answers nobody
        self.hold_at: list[int] = []  # numbers of events from which on it holds
        self._held: list[Event] = []
        self._stops = False
        self._thread = threading.Thread(target=self._act)
        self._thread.start()

    def close(self) -> None:
        self._stops = True
        self._thread.join()
        self.server.close()

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    def _act(self) -> None:
        while not self._stops:
            new = self.server.take(0.02)
            self.events += new
            if self.hold_at and len(self.events) >= self.hold_at[0]:
                self.holds = True
                del self.hold_at[0]
            self._held += [event for event in new if event.kind in ("reset", "step")]
            if not self.holds:
                self.server.answer(
                    (event, int(event.obs[0]) % 2) for event in self._held if isinstance(event.obs, np.ndarray)
                )
                self._held = []


class Peer:
    """A client that says exactly what it is told to."""

    def __init__(self, url: str, hello: dict[str, Any] | None = HELLO, **options: Any) -> None:
        self.socket: ClientConnection = connect(url, compression=None, **options).__enter__()
        if hello:
            self.welcome = self.ask(hello)

    def say(self, values: dict[str, Any] | str | bytes) -> None:
        self.socket.send(json.dumps(values) if isinstance(values, dict) else values)

    def hear(self, timeout_s: float = 5.0) -> dict[str, Any]:
        return dict(json.loads(self.socket.recv(timeout=timeout_s)))

    def ask(self, values: dict[str, Any] | str | bytes) -> dict[str, Any]:
        self.say(values)
        return self.hear()

    def reset(self, sequence: int = 0) -> dict[str, Any]:
        return self.ask({"type": "reset", "sequence": sequence, "observation": OBS})

    def step(self, sequence: int, kind: str = "step", first: float = 0.0) -> dict[str, Any]:
        return self.ask({"type": kind, "sequence": sequence, "observation": [first, *OBS[1:]], "reward": 1})

    def closed(self, within_s: float = 5.0) -> int | None:
        """The code with which the server closes the connection; what it still says is dropped."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                self.socket.recv(timeout=within_s)
        return self.socket.close_code

    def cut(self) -> None:
        """Breaks the connection without a word."""
        self.socket.socket.shutdown(socket.SHUT_RDWR)


Serve = Callable[..., Acting]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server on a free port; `acting.server` has its `url`."""
    with contextlib.ExitStack() as stack:

        def start(
            spec: EnvironmentSpec = CARTPOLE,
            listener: Listener | None = None,
            evaluator: Path | None = None,
            evaluates: bool = True,
            **settings: Any,
        ) -> Acting:
            listening = ListenConfig(**{"listen": f"127.0.0.1:{free_port()}", "grace_s": 0.3, **settings})
            address = (lambda: evaluator) if evaluator else None
            server = Server(listening, spec, TOKEN, listener=listener, evaluator=address, evaluates=evaluates)
            acting = Acting(server)
            stack.callback(acting.close)
            return acting

        yield start


@contextlib.contextmanager
def broken_server() -> Iterator[tuple[int, list[float]]]:
    """A server that says welcome and breaks the connection at the first message: its port, and when it said welcome."""
    welcomes: list[float] = []

    def welcome(connection: ServerConnection) -> None:
        hello = connection.recv(timeout=10)
        values = {"type": "welcome", "session": "1", "sequence": -1}
        connection.send(json.dumps(values) if isinstance(hello, str) else msgpack.packb(values))
        welcomes.append(time.monotonic())
        connection.recv(timeout=10)

    with serve_script(welcome, "127.0.0.1", 0, compression=None) as server:
        threading.Thread(target=server.serve_forever).start()
        yield server.socket.getsockname()[1], welcomes
        server.shutdown()


def until(condition: Callable[[], object], within_s: float = 5.0) -> None:
    """Waits until `condition` is true."""
    eventually(condition, within_s)


__all__ = ["HELLO", "LOST", "OBS", "TOKEN", "Acting", "Peer", "Serve", "broken_server", "free_port", "serve", "until"]
