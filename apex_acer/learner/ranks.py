"""How several learners communicate: collective operations through torch.distributed.

All learners make the same calls in the same order. A call waits for the others, up to the timeout that they were connected
with, and then raises `LearnerLost`. A single learner uses `ALONE`, whose operations are local.
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

from apex_acer.protocol.specification import Array

CONNECT_S = 300.0  # until all learners have connected; each imports torch first


class LearnerLost(Exception):
    """Another learner ended, or did not answer before the timeout."""


class Ranks:
    """The collective operations of a single learner."""

    rank = 0
    """This learner's number; learner 0, the first, evaluates, saves and logs."""
    count = 1
    """Number of learners."""

    def gather(self, numbers: Sequence[float] | Array) -> Array:
        """The `numbers` of all learners, each of which gives n: `[count, n]` float64."""
        return np.array([numbers], np.float64)

    def add(self, tensor: Tensor) -> None:
        """Replaces `tensor` by its sum over all learners."""

    def share(self, data: bytes) -> bytes:
        """The `data` of the first learner."""
        return data

    def collect(self, data: bytes) -> list[bytes]:
        """The `data` of all learners."""
        return [data]

    def align(self, tensors: Sequence[Tensor]) -> None:
        """Replaces the values of `tensors` by the first learner's."""

    def close(self) -> None:
        """Disconnects from the other learners."""


ALONE = Ranks()


@dataclass(frozen=True)
class Meeting:
    """How learner `rank` of `count` connects: at the address on which the first learner listens."""

    rank: int
    count: int
    host: str
    port: int
    timeout_s: float
    """Seconds until an operation fails because another learner does not take part."""


class ConnectedRanks(Ranks):
    """The collective operations of several learners, on one machine or many: gloo between CPUs, NCCL between GPUs."""

    def __init__(self, meeting: Meeting, listening: socket.socket | None = None) -> None:
        """Connects all learners; the first one passes its `listening` socket. Raises `LearnerLost` after `CONNECT_S`."""
        self.rank, self.count = meeting.rank, meeting.count
        if meeting.host == "127.0.0.1":  # all learners are on this machine
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
        found: Array = torch.stack(self._gather(torch.tensor(numbers, dtype=torch.float64))).numpy()
        return found

    def add(self, tensor: Tensor) -> None:
        _call(distributed.all_reduce, tensor)

    def share(self, data: bytes) -> bytes:
        (size,) = self.gather([len(data)])[0]
        buffer = _tensor(data) if self.rank == 0 else torch.empty(int(size), dtype=torch.uint8)
        _call(distributed.broadcast, buffer, 0)
        return buffer.numpy().tobytes()

    def collect(self, data: bytes) -> list[bytes]:
        sizes = self.gather([len(data)])[:, 0].astype(int)
        padded = self._gather(_tensor(data.ljust(sizes.max(), b"\0")))
        return [whole[:size].numpy().tobytes() for whole, size in zip(padded, sizes, strict=True)]

    def _gather(self, own: Tensor) -> list[Tensor]:
        gathered = [torch.empty_like(own) for _ in range(self.count)]
        _call(distributed.all_gather, gathered, own)
        return gathered

    def align(self, tensors: Sequence[Tensor]) -> None:
        if not tensors:
            return
        with torch.no_grad():
            flat = torch.cat([tensor.reshape(-1).double() for tensor in tensors])
            _call(distributed.broadcast, flat, 0)
            for tensor, values in zip(tensors, torch.split(flat, [each.numel() for each in tensors]), strict=True):
                tensor.copy_(values.view(tensor.shape))

    def close(self) -> None:
        distributed.destroy_process_group()


def listen(host: str) -> tuple[socket.socket, int]:
    """A listening socket at `host` for the first learner's `ConnectedRanks`, and its port."""
    listening = socket.create_server((host, 0))
    return listening, int(listening.getsockname()[1])


def _call(operation: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    try:
        return operation(*arguments, **named)
    except RuntimeError as error:
        raise LearnerLost(str(error)) from error


def _tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
