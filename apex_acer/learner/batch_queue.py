"""The queue that hands over the next batch: sequences fresh from actors, each once and in order, or replayed samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from apex_acer.config import RunConfig, Sampling
from apex_acer.protocol.messages import Row
from apex_acer.protocol.specification import Array
from apex_acer.protocol.unroll import Batch, Unroll
from apex_acer.replay.rate_limiter import RateLimiter
from apex_acer.replay.sampler import Sampler
from apex_acer.replay.storage import Storage


class Selection(NamedTuple):
    """What a batch is made of."""

    samples: Tensor
    """`[B]` int64, numbers in the storage; the first `num_fresh` are trained on for the first time."""
    num_fresh: int
    importance: Tensor
    """`[B]` weights in the loss."""
    num_inserted: int
    """Sequences that had been inserted into the storage when these samples were selected."""
    num_padding: int = 0
    """Samples at the end that only fill the batch, and are masked."""


class PendingBatch(NamedTuple):
    """A batch that is gathered and moved during the update before."""

    selection: Selection
    batch: Future[Batch]
    drawing: dict[str, Any]
    """The part of the queue's state that the selection has changed, as it was before."""


class BatchQueue:
    """Selects samples, replayed ones if the rate limiter calls for them, otherwise fresh sequences, and gathers them.

    With a `transfer`, the next batch is gathered and moved to the learner's device during the update before.
    """

    def __init__(
        self,
        config: RunConfig,
        sampling: Sampling,
        storage: Storage,
        sampler: Sampler,
        limiter: RateLimiter,
        transfer: Transfer | None = None,
    ) -> None:
        self.storage, self._sampler, self._limiter = storage, sampler, limiter
        self._trains_fresh = sampling.fresh  # otherwise sequences count as fresh when they arrive
        self._batch_size = config.learner.batch_size
        self._batch_steps = self._batch_size * (1 if sampling.n_steps else config.algorithm.unroll_length)
        self._transfer = transfer
        self._fresh: deque[int] = deque()  # slots of sequences that were not trained on yet
        self._held = 0
        self._pending: PendingBatch | None = None
        self._given: Selection  # of the batch that was handed over last

    @property
    def ready(self) -> bool:
        return self._pending is not None or self._has_batch()

    @property
    def num_fresh(self) -> int:
        """Fresh sequences that were not selected yet."""
        return len(self._fresh)

    @property
    def takes_more(self) -> bool:
        """Whether another unroll should be inserted before the learner goes on."""
        return False

    def insert(self, unroll: Unroll, weights_version: int) -> None:
        """Stores an unroll's sequences, and queues them if they are trained on as they arrive."""
        slots = self.store(unroll, weights_version)
        if self._trains_fresh:
            self._fresh.extend(slots.tolist())

    def store(self, unroll: Unroll, weights_version: int) -> Tensor:
        """Stores an unroll's sequences for replay alone; returns their slots."""
        if self._pending:
            self._pending.batch.exception()  # waits: the oldest sequences are about to be overwritten
        slots = self.storage.insert(unroll, weights_version)
        self._sampler.insert(slots, unroll)
        return slots

    def agree(self, num_steps: int, stops: bool, row_due: bool) -> tuple[int, bool, bool]:
        """Counts the `num_steps` environment steps of what was inserted; several learners agree on all three values."""
        self._count(np.array([num_steps]), self.storage.num_steps, self.storage.is_full)
        return num_steps, stops, row_due

    def next_batch(self, progress: float = 0.0) -> Batch:
        """The batch that is `ready`; `progress` is the share of the schedules that is over."""
        if not self._transfer:
            self._given = self._select(progress)
            return self._gather(self._given)
        pending = self._pending or self._start(self._transfer, progress)
        self._pending = None
        batch = pending.batch.result()
        self._given = pending.selection
        if self._has_batch():
            self._pending = self._start(self._transfer, progress)
        return batch

    def set_priorities(self, priorities: Tensor) -> None:
        """Takes the new priorities `[B]` of the batch that was handed over last."""
        samples, num = self._given.samples, len(self._given.samples) - self._given.num_padding
        self._sampler.set_priorities(samples[:num], priorities[:num], self._given.num_inserted)

    def figures(self) -> Row:
        """Metrics of now; a batch that was not handed over yet counts as not trained on."""
        pending = self._pending.selection.num_fresh if self._pending else 0
        return {
            "replay_steps": self._held,
            "replay_ratio": self._limiter.ratio,
            "fresh_sequences": self.num_fresh + pending,
        }

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`, as if a pending batch had not been selected; valid together with `arrays`."""
        fresh, drawing = list(self._fresh), self._drawing()
        if self._pending:
            selection, drawing = self._pending.selection, self._pending.drawing
            fresh[:0] = selection.samples[: selection.num_fresh].tolist()
        return {**drawing, "sequences": {"inserted": self.storage.num_inserted, "fresh": fresh}}

    def arrays(self) -> dict[str, Array]:
        return self.storage.arrays() | self._sampler.arrays()

    def restore(self, state: Mapping[str, Any], fill: Callable[[str, Array], None] | None) -> None:
        """Continues from a `state`, with what `fill` writes into each of `arrays`; `agree` must follow.

        Without `fill` replay begins empty and nothing is owed, so that there is no burst of updates.
        """
        self._limiter.restore(state["rate_limiter"], keep_credit=fill is not None)
        self._sampler.generator.set_state(torch.frombuffer(bytearray.fromhex(state["sampling"]), dtype=torch.uint8))
        if fill:
            self.storage.restore(int(state["sequences"]["inserted"]), fill)
            self._sampler.restore(fill)
            self._fresh = deque(state["sequences"]["fresh"])

    def close(self) -> None:
        if self._transfer:
            self._transfer.close()

    def _has_batch(self) -> bool:
        return self._limiter.owes(self._batch_steps) or len(self._fresh) >= self._batch_size

    def _count(self, steps: Array, held: int, is_full: bool) -> None:
        """Counts inserted `steps` `[learners]`; the storages of all learners hold `held` steps."""
        self._held = held
        self._limiter.count_held(held, is_full)
        if not self._trains_fresh and steps.any():
            self._limiter.count_fresh(steps)

    def _start(self, transfer: Transfer, progress: float) -> PendingBatch:
        drawing, selection = self._drawing(), self._select(progress)
        return PendingBatch(selection, transfer.start(lambda: self._gather(selection)), drawing)

    def _drawing(self) -> dict[str, Any]:
        generator = self._sampler.generator.get_state().numpy().tobytes().hex()
        return {"rate_limiter": self._limiter.state(), "sampling": generator}

    def _select(self, progress: float) -> Selection:
        if self._limiter.owes(self._batch_steps):
            return self._select_replayed(progress)
        return self._select_fresh()

    def _select_fresh(self) -> Selection:
        samples = self._pop_fresh(self._batch_size)
        self._limiter.count_fresh(self.storage.count_steps(samples))
        return Selection(samples, len(samples), torch.ones(len(samples)), self.storage.num_inserted)

    def _select_replayed(self, progress: float) -> Selection:
        samples = self._sampler.draw(self._batch_size)
        self._limiter.count_replayed(int(self.storage.count_steps(samples).sum()))
        return Selection(samples, 0, self._sampler.importance(samples, progress), self.storage.num_inserted)

    def _pop_fresh(self, num: int) -> Tensor:
        return torch.tensor([self._fresh.popleft() for _ in range(num)], dtype=torch.int64)

    def _gather(self, selection: Selection) -> Batch:
        batch = self.storage.gather(selection.samples, selection.num_fresh, selection.importance)
        if selection.num_padding:
            batch.mask[:, -selection.num_padding :] = False
        return batch


class Transfer:
    """Gathers a batch and moves it to `device` in its own thread, during the update on the previous batch."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._thread = ThreadPoolExecutor(1, "transfer")
        on_gpu = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]

    def start(self, gather: Callable[[], Batch]) -> Future[Batch]:
        """Starts to gather a batch and to move it; the tensors of the future's result are on the device."""
        return self._thread.submit(lambda: self._move(gather()))

    def close(self) -> None:
        self._thread.shutdown()

    def _move(self, batch: Batch) -> Batch:
        if self._stream is None:
            return each_tensor(batch, lambda tensor: tensor.to(self._device))
        with torch.cuda.stream(self._stream):
            # page-locked memory is copied while the device computes
            moved = each_tensor(batch, lambda tensor: tensor.pin_memory().to(self._device, non_blocking=True))
        self._stream.synchronize()
        computing = torch.cuda.default_stream(self._device)
        return each_tensor(moved, lambda tensor: _used_on(tensor, computing))


def each_tensor(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    """`batch` with `change` applied to every tensor."""
    changed: dict[str, Any] = {
        name: {key: change(tensor) for key, tensor in field.items()} if isinstance(field, dict) else change(field)
        for name, field in vars(batch).items()
    }
    return Batch(**changed)


def _used_on(tensor: Tensor, stream: torch.cuda.Stream) -> Tensor:
    tensor.record_stream(stream)  # its memory must not be given to the next copy while the device computes with it
    return tensor
