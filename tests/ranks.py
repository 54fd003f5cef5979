"""Several learners for tests: processes that connect to each other and run the same function."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from apex_acer.learner.ranks import ConnectedRanks, Ranks, listen

DEADLINE_S = 60.0  # for one function in all processes; the first one imports torch


def work(address: str) -> None:
    """Runs what it is sent; `multiprocessing` would start this process with another one that stays."""
    import torch

    pipe = Client(address)
    torch.set_num_threads(1)
    while said := pipe.recv():
        function, arguments, rank, count, port, timeout_s = said
        listening = None if rank else socket.create_server(("127.0.0.1", port), reuse_port=True)
        try:
            ranks = ConnectedRanks(rank, count, "127.0.0.1", port, timeout_s, listening)
            pipe.send(("gave", function(ranks, *arguments)))
        except Exception:
            pipe.send(("raised", traceback.format_exc()))
        with contextlib.suppress(Exception):
            ranks.close()


class Group:
    """Processes that stay, one for each learner."""

    def __init__(self, count: int) -> None:
        with tempfile.TemporaryDirectory() as folder, Listener(str(Path(folder, "socket")), backlog=count) as listener:
            command = [sys.executable, "-c", f"from tests.ranks import work; work({listener.address!r})"]
            self._processes = [subprocess.Popen(command) for _ in range(count)]
            self._pipes = [listener.accept() for _ in range(count)]

    def run(self, function: Callable[..., Any], *arguments: Any, timeout_s: float = 20.0) -> list[Any]:
        """What `function(ranks, *arguments)` gives in each process, or the traceback of what it raises, marked so."""
        listening, port = listen("127.0.0.1")
        listening.close()
        for rank, pipe in enumerate(self._pipes):
            pipe.send((function, arguments, rank, len(self._pipes), port, timeout_s))
        return [self._result(pipe) for pipe in self._pipes]

    def _result(self, pipe: Connection) -> Any:
        assert pipe.poll(DEADLINE_S), "no answer in time"
        kind, result = pipe.recv()
        assert kind == "gave", result
        return result

    def close(self) -> None:
        """Ends the processes."""
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            process.kill()
            process.wait()
            pipe.close()


@contextlib.contextmanager
def group(count: int = 2) -> Iterator[Group]:
    """A `Group` that is ended afterwards."""
    found = Group(count)
    try:
        yield found
    finally:
        found.close()


def connected(ranks: Ranks) -> int:
    """How many there are, asked of all."""
    return int(ranks.gather([1.0]).sum())
