"""Several learners for tests: processes that connect to each other and run the same function."""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from apex_acer.ranks import ConnectedRanks, Meeting, Ranks, listen

DEADLINE_S = 60.0  # for one function in all processes; the first one imports torch


def _work(pipe: Connection) -> None:
    import torch

    torch.set_num_threads(1)
    while said := pipe.recv():
        function, arguments, meeting, listens = said
        listening = socket.create_server((meeting.host, meeting.port), reuse_port=True) if listens else None
        try:
            ranks = ConnectedRanks(meeting, listening)
            pipe.send(("gave", function(ranks, *arguments)))
        except Exception:
            pipe.send(("raised", traceback.format_exc()))
        with contextlib.suppress(Exception):
            ranks.close()


class Group:
    """Processes that stay, one for each learner."""

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        for _ in range(count):
            mine, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs,), daemon=True)
            process.start()
            self._pipes.append(mine)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], *arguments: Any, timeout_s: float = 20.0) -> list[Any]:
        """What `function(ranks, *arguments)` gives in each process, or the traceback of what it raises, marked so."""
        listening, port = listen("127.0.0.1")
        listening.close()
        for rank, pipe in enumerate(self._pipes):
            meeting = Meeting(rank, len(self._pipes), "127.0.0.1", port, timeout_s)
            pipe.send((function, arguments, meeting, rank == 0))
        return [self._result(pipe) for pipe in self._pipes]

    def _result(self, pipe: Connection) -> Any:
        assert pipe.poll(DEADLINE_S), "no answer in time"
        kind, result = pipe.recv()
        assert kind == "gave", result
        return result

    def close(self) -> None:
        """Ends the processes."""
        for process in self._processes:
            process.kill()
            process.join()


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
