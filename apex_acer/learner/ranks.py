"""Learners that make every update together: what one says to the others, through torch.distributed.

One learner alone is a `Ranks`, which says it to itself. All learners make the same calls in the same order; a call waits for
the others, up to the deadline that they were connected with, and then raises `LearnerLost`.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed

from apex_acer.protocol.unroll import Array

CONNECT_S = 300.0  # for all to come: each imports torch first


class LearnerLost(Exception):
    """Another learner ended, or said nothing until the deadline."""


class Ranks:
    """A learner alone."""

    rank = 0
    """Which of them this one is; the first one evaluates, saves and logs."""
    count = 1
    """How many there are."""

    def gather(self, numbers: Sequence[float] | Array) -> Array:
        """Everybody's `numbers`, of which all give equally many: `[count, n]` float64."""
        return np.array([numbers], np.float64)

    def add(self, tensor: Tensor) -> None:
        """Puts the sum over all of them into `tensor`."""

    def share(self, data: bytes) -> bytes:
        """The first one's `data`."""
        return data

    def collect(self, data: bytes) -> list[bytes]:
        """Everybody's `data`."""
        return [data]

    def align(self, tensors: Sequence[Tensor]) -> None:
        """Puts the first one's values into `tensors`."""

    def close(self) -> None:
        """Leaves the others."""


ALONE = Ranks()


@dataclass(frozen=True)
class Meeting:
    """Where learners connect: one of `count`, at the address where the first one listens."""

    rank: int
    count: int
    host: str
    port: int
    timeout_s: float
    """For whatever is said."""


class ConnectedRanks(Ranks):
    """One learner of several, on one machine or many: gloo between CPUs, NCCL between GPUs."""

    def __init__(self, meeting: Meeting, listening: socket.socket | None = None) -> None:
        """Connects all; the first one brings the socket that is `listening` there. Raises `LearnerLost` at the deadline."""
        self.rank, self.count = meeting.rank, meeting.count
        if meeting.host == "127.0.0.1":  # nobody beyond this machine takes part
            os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
        store = _call(
            distributed.TCPStore,  # type: ignore[attr-defined]
            meeting.host,
            meeting.port,
            meeting.count,
            is_master=listening is not None,
            timeout=timedelta(seconds=CONNECT_S),
            master_listen_fd=listening.detach() if listening else None,
        )
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        timeout = timedelta(seconds=meeting.timeout_s)
        numbers = {"world_size": meeting.count, "rank": meeting.rank}
        _call(distributed.init_process_group, backend, timeout=timeout, store=store, **numbers)

    def gather(self, numbers: Sequence[float] | Array) -> Array:
        """Everybody's `numbers`, of which all give equally many: `[count, n]` float64."""
        mine = torch.tensor(numbers, dtype=torch.float64)
        everybodys = [torch.empty_like(mine) for _ in range(self.count)]
        _call(distributed.all_gather, everybodys, mine)
        found: Array = torch.stack(everybodys).numpy()
        return found

    def add(self, tensor: Tensor) -> None:
        """Puts the sum over all of them into `tensor`."""
        _call(distributed.all_reduce, tensor)

    def share(self, data: bytes) -> bytes:
        """The first one's `data`."""
        (size,) = self.gather([len(data)])[0]
        buffer = _tensor(data) if self.rank == 0 else torch.empty(int(size), dtype=torch.uint8)
        _call(distributed.broadcast, buffer, 0)
        return buffer.numpy().tobytes()

    def collect(self, data: bytes) -> list[bytes]:
        """Everybody's `data`."""
        sizes = self.gather([len(data)])[:, 0].astype(int)
        mine = _tensor(data.ljust(sizes.max(), b"\0"))
        everybodys = [torch.empty_like(mine) for _ in range(self.count)]
        _call(distributed.all_gather, everybodys, mine)
        return [whole[:size].numpy().tobytes() for whole, size in zip(everybodys, sizes, strict=True)]

    def align(self, tensors: Sequence[Tensor]) -> None:
        """Puts the first one's values into `tensors`."""
        if not tensors:
            return
        with torch.no_grad():
            flat = torch.cat([tensor.reshape(-1).double() for tensor in tensors])
            _call(distributed.broadcast, flat, 0)
            for tensor, values in zip(tensors, torch.split(flat, [each.numel() for each in tensors]), strict=True):
                tensor.copy_(values.view(tensor.shape))

    def close(self) -> None:
        """Leaves the others."""
        distributed.destroy_process_group()


def listen(host: str) -> tuple[socket.socket, int]:
    """A socket for the first learner's `ConnectedRanks` at `host`, and its port."""
    listening = socket.create_server((host, 0))
    return listening, int(listening.getsockname()[1])


def _call(operation: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    try:
        return operation(*arguments, **named)
    except RuntimeError as error:
        raise LearnerLost(str(error)) from error


def _tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
