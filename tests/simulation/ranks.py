"""Several learners in one process: each collective operation is a turn of every learner, in the order of their ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apex_acer.learner.ranks import LearnerLost, Ranks
from apex_acer.protocol.specification import Array


class Group:
    """Threads of which only one runs at a time, so that a run repeats exactly."""

    def __init__(self, count: int) -> None:
        self._turn = threading.Condition()
        self._at = 0  # the rank whose turn it is
        self._running: list[int] = []
        self._values: list[list[Any]] = [
            [None] * count,
            [None] * count,
        ]  # of the newest exchange, and of the one before
        self._rounds = [0] * count
        self._error: BaseException | None = None

    def run(self, functions: Sequence[Callable[[], Any]]) -> list[Any]:
        """What each learner's function returns; raises what the first that fails raises."""
        results: list[Any] = [None] * len(functions)
        self._at, self._running, self._error = 0, list(range(len(functions))), None

        def work(rank: int) -> None:
            self._wait(rank)
            try:
                results[rank] = functions[rank]()
            except BaseException as error:  # the learners' turn raises it
                self._error = self._error or error
            self._pass_on(rank)
            self._running.remove(rank)

        threads = [threading.Thread(target=work, args=(rank,)) for rank in self._running]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._error:
            raise self._error
        return results

    def exchange(self, rank: int, value: Any) -> list[Any]:
        """The value of each learner; raises `LearnerLost` if another one has failed or is done."""
        if len(self._running) < len(self._rounds):
            raise LearnerLost("another learner makes no such call")
        values = self._values[self._rounds[rank] % 2]  # another learner may still read those of the exchange before
        self._rounds[rank] += 1
        values[rank] = value
        self._pass_on(rank)
        self._wait(rank)
        if self._error:
            raise LearnerLost("another learner has failed")
        return list(values)

    def _wait(self, rank: int) -> None:
        with self._turn:
            assert self._turn.wait_for(lambda: self._at == rank, 60), "learners wait for each other"

    def _pass_on(self, rank: int) -> None:
        with self._turn:
            later = [other for other in self._running if other > rank]
            self._at = (later or self._running)[0]
            self._turn.notify_all()


class SimulatedRanks(Ranks):
    """The collective operations of the learner `rank` of `count`."""

    def __init__(self, group: Group, rank: int, count: int) -> None:
        self._group, self.rank, self.count = group, rank, count

    def gather(self, numbers: Sequence[float] | Array) -> Array:
        gathered: Array = np.array(self._group.exchange(self.rank, np.array(numbers, np.float64)))
        return gathered

    def add(self, tensor: Tensor) -> None:
        tensor.copy_(torch.stack(self._group.exchange(self.rank, tensor.clone())).sum(0))

    def collect(self, data: bytes) -> list[bytes]:
        return self._group.exchange(self.rank, data)

    def align(self, tensors: Sequence[Tensor]) -> None:
        first = self._group.exchange(self.rank, [tensor.detach().clone() for tensor in tensors])[0]
        with torch.no_grad():
            for tensor, values in zip(tensors, first, strict=True):
                tensor.copy_(values)
