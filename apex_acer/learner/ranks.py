"""How several learners communicate: collective operations through torch.distributed.

All learners make the same calls in the same order. A call waits for the others, up to the timeout that they were connected
with, and then raises `LearnerLost`. A single learner uses `ALONE`, whose operations are local.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Sequence
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

    def collect(self, data: bytes) -> list[bytes]:
        """The `data` of all learners."""
        return [data]

    def align(self, tensors: Sequence[Tensor]) -> None:
        """Replaces the values of `tensors` by the first learner's."""

    def close(self) -> None:
        """Disconnects from the other learners."""


ALONE = Ranks()


class ConnectedRanks(Ranks):
    """The collective operations of several learners, on one machine or many: gloo between CPUs, NCCL between GPUs."""

    def __init__(
        self, rank: int, count: int, host: str, port: int, timeout_s: float, listening: socket.socket | None = None
    ) -> None:
        """Connects all learners at the address of the first one, which passes its `listening` socket.

        Raises `LearnerLost` after `CONNECT_S`, and in an operation if another learner takes no part for `timeout_s` seconds.
        """
        self.rank, self.count = rank, count
        if host == "127.0.0.1":  # all learners are on this machine
            os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
        first = {"is_master": listening is not None, "master_listen_fd": listening.detach() if listening else None}
        timeout = timedelta(seconds=CONNECT_S)
        store = _call(distributed.TCPStore, host, port, count, timeout=timeout, **first)  # type: ignore[attr-defined]
        backend, timeout = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timedelta(seconds=timeout_s)
        _call(distributed.init_process_group, backend, timeout=timeout, store=store, world_size=count, rank=rank)

    def gather(self, numbers: Sequence[float] | Array) -> Array:
        gathered: Array = torch.stack(self._gather(torch.tensor(numbers, dtype=torch.float64))).numpy()
        return gathered

    def add(self, tensor: Tensor) -> None:
        _call(distributed.all_reduce, tensor)

    def collect(self, data: bytes) -> list[bytes]:
        sizes = self.gather([len(data)])[:, 0].astype(int)
        padded = bytearray(data.ljust(max(1, sizes.max()), b"\0"))
        gathered = self._gather(torch.frombuffer(padded, dtype=torch.uint8))
        return [whole[:size].numpy().tobytes() for whole, size in zip(gathered, sizes, strict=True)]

    def _gather(self, tensor: Tensor) -> list[Tensor]:
        gathered = [torch.empty_like(tensor) for _ in range(self.count)]
        _call(distributed.all_gather, gathered, tensor)
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
