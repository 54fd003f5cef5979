"""The queue that hands over the next batch: sequences fresh from actors, each once and in order, or replayed samples."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from apex_acer.config import RunConfig
from apex_acer.learner.ranks import ALONE, Ranks
from apex_acer.protocol.messages import Row
from apex_acer.protocol.specification import Array
from apex_acer.protocol.unroll import Batch, Unroll
from apex_acer.replay.rate_limiter import RateLimiter
from apex_acer.replay.sampler import Sampler
from apex_acer.replay.storage import Read, Storage


class Selection(NamedTuple):
    """What this learner's part of a batch is made of."""

    samples: Tensor
    """`[B]` int64, numbers in the storage."""
    num_fresh: int
    """Samples at the beginning that are trained on for the first time."""
    num_padding: int
    """Samples at the end that only fill the batch, and are masked."""
    importance: Tensor
    """`[B]` weights in the loss."""
    num_inserted: int
    """Sequences that had been inserted into the storage when these samples were selected."""


class BatchQueue:
    """Selects samples, replayed ones if the rate limiter calls for them, otherwise fresh sequences, and gathers them.

    Several learners contribute equal parts of every batch. Each has its own sequences and decides from what all of them
    agreed on, so all decide alike.
    """

    def __init__(
        self,
        config: RunConfig,
        storage: Storage,
        sampler: Sampler,
        limiter: RateLimiter,
        device: torch.device | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """With a `device`, the next batch is gathered, and moved there, in a thread during the update before.

        The generators of all learners' `limiter`s must be seeded alike.
        """
        self.storage, self._sampler, self._limiter, self._ranks = storage, sampler, limiter, ranks
        sampling, batch_size = config.algorithm.sampling, config.learner.batch_size
        self._trains_fresh = sampling.fresh  # otherwise sequences count as fresh when they arrive
        self._part_size = batch_size // ranks.count
        self._batch_steps = batch_size * (1 if sampling.n_steps else config.algorithm.unroll_length)
        self._fresh: deque[int] = deque()  # slots of sequences that were not trained on yet
        self._num_fresh = np.zeros(ranks.count, np.int64)  # such sequences of each learner, as agreed
        self._replay_steps = 0
        self._thread = ThreadPoolExecutor(1, "transfer") if device else None
        self._move = mover(device) if device else None
        self._pending: tuple[Selection, Future[Batch]] | None = None
        self._before_pending: dict[str, Any] = {}  # what the selection of the pending batch has changed
        self._selection: Selection  # of the batch that was handed over last

    @property
    def ready(self) -> bool:
        return self._pending is not None or self._has_batch()

    @property
    def num_fresh(self) -> int:
        """Fresh sequences that were not selected yet."""
        return len(self._fresh)

    @property
    def takes_more(self) -> bool:
        """Whether another unroll should be inserted first: one of several learners may have to fill a batch alone."""
        return self._ranks is not ALONE and self.num_fresh < self._part_size * self._ranks.count

    def insert(self, unroll: Unroll, weights_version: int) -> None:
        """Stores an unroll's sequences, and queues them if they are trained on as they arrive."""
        slots = self.store(unroll, weights_version)
        if self._trains_fresh:
            self._fresh.extend(slots.tolist())

    def store(self, unroll: Unroll, weights_version: int) -> Tensor:
        """Stores an unroll's sequences for replay alone; returns their slots."""
        if self._pending:
            self._pending[1].exception()  # waits: the oldest sequences are about to be overwritten
        slots = self.storage.insert(unroll, weights_version)
        self._sampler.insert(slots, unroll)
        return slots

    def agree(self, num_steps: int, stops: bool, row_due: bool) -> tuple[int, bool, bool]:
        """Has the learners agree on what each has inserted, `num_steps` environment steps here.

        Returns:
            The steps that all have inserted, and whether the first learner stops and is to write its row.
        """
        storage = self.storage
        told = num_steps, self.num_fresh, storage.num_steps, storage.is_full, stops, row_due
        steps, fresh, stored, full, stop, due = self._ranks.gather(told).T  # each [learners]
        self._num_fresh, self._replay_steps = fresh.astype(np.int64), int(stored.sum())
        self._limiter.count_held(self._replay_steps, bool(full.all()))
        if not self._trains_fresh and steps.any():
            self._limiter.count_fresh(steps)
        return int(steps.sum()), bool(stop[0]), bool(due[0])

    def next_batch(self, progress: float = 0.0) -> Batch:
        """The batch that is `ready`; `progress` is the share of the schedules that is over."""
        if not self._thread:
            self._selection = self._select(progress)
            return self._gather(self._selection)
        self._selection, future = self._pending or self._start(self._thread, progress)
        self._pending = None
        batch = future.result()
        if self._has_batch():
            self._pending = self._start(self._thread, progress)
        return batch

    def set_priorities(self, priorities: Tensor) -> None:
        """Takes the new priorities `[B]` of the batch that was handed over last."""
        samples, num = self._selection.samples, len(self._selection.samples) - self._selection.num_padding
        self._sampler.set_priorities(samples[:num], priorities[:num], self._selection.num_inserted)

    def figures(self) -> Row:
        """Metrics of now; a batch that was not handed over yet counts as not trained on."""
        num_pending = self._pending[0].num_fresh if self._pending else 0
        return {
            "replay_steps": self._replay_steps,
            "replay_ratio": self._limiter.ratio,
            "fresh_sequences": self.num_fresh + num_pending,
        }

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`, as if a pending batch had not been selected; valid together with `arrays`."""
        fresh, drawing = list(self._fresh), self._drawing()
        if self._pending:
            selection, drawing = self._pending[0], self._before_pending
            fresh[:0] = selection.samples[: selection.num_fresh].tolist()
        return {**drawing, "sequences": {"inserted": self.storage.num_inserted, "fresh": fresh}}

    def arrays(self) -> dict[str, Array]:
        return self.storage.arrays() | self._sampler.arrays()

    def restore(self, state: Mapping[str, Any], read: Read | None) -> None:
        """Continues from the first learner's `state`, with `arrays` as `read` returns them; `agree` must follow.

        Without `read` replay begins empty and nothing is owed, so that there is no burst of updates.
        """
        self._limiter.restore(state["rate_limiter"], keep_credit=read is not None)
        if self._ranks.rank == 0:  # the other learners keep their own generators
            self._sampler.generator.set_state(torch.frombuffer(bytearray.fromhex(state["sampling"]), dtype=torch.uint8))
        if read:
            self.storage.restore(int(state["sequences"]["inserted"]), read)
            self._sampler.restore(read)
            self._fresh = deque(state["sequences"]["fresh"])

    def close(self) -> None:
        if self._thread:
            self._thread.shutdown()

    def _has_batch(self) -> bool:
        """Whether replay is due, or each learner has its fresh part, or together they have a whole batch."""
        part, fresh = self._part_size, self._num_fresh
        replays = self._limiter.owes(self._batch_steps)
        return bool(replays or fresh.min() >= part or fresh.sum() >= part * self._ranks.count)

    def _start(self, thread: ThreadPoolExecutor, progress: float) -> tuple[Selection, Future[Batch]]:
        self._before_pending, selection = self._drawing(), self._select(progress)
        return selection, thread.submit(self._gather, selection)

    def _drawing(self) -> dict[str, Any]:
        generator = self._sampler.generator.get_state().numpy().tobytes().hex()
        return {"rate_limiter": self._limiter.state(), "sampling": generator}

    def _select(self, progress: float) -> Selection:
        size, storage = self._part_size, self.storage
        if self._limiter.owes(self._batch_steps):
            num_fresh, samples = 0, torch.empty(0, dtype=torch.int64)
            if len(storage):  # another learner may have sequences before this one
                samples = self._sampler.draw(size)
            probabilities = self._sampler.probabilities(samples)
            told = float(storage.count_steps(samples).sum()), float(probabilities.min(initial=math.inf))
            steps, least = self._ranks.gather(told).T
            self._limiter.count_replayed(int(steps.sum()))
            importance = self._sampler.importance(probabilities, progress, least.min())
        else:
            numbers = self._num_fresh.clip(max=size)
            self._num_fresh = self._num_fresh - numbers
            num_fresh = int(numbers[self._ranks.rank])
            samples = torch.tensor([self._fresh.popleft() for _ in range(num_fresh)], dtype=torch.int64)
            steps = np.zeros(size)
            steps[:num_fresh] = storage.count_steps(samples)
            self._limiter.count_fresh(self._ranks.gather(steps).ravel())
            importance = torch.ones(num_fresh)
        num_padding = size - len(samples)
        if num_padding:
            samples = torch.cat([samples, samples.new_zeros(num_padding)])
            importance = torch.cat([importance, torch.ones(num_padding)])
        return Selection(samples, num_fresh, num_padding, importance, storage.num_inserted)

    def _gather(self, selection: Selection) -> Batch:
        batch = self.storage.gather(selection.samples, selection.num_fresh, selection.importance)
        if selection.num_padding:
            batch.mask[:, -selection.num_padding :] = False
        return self._move(batch) if self._move else batch


def mover(device: torch.device) -> Callable[[Batch], Batch]:
    """A function that copies a batch to `device`; called in another thread, it copies while the device computes."""
    if device.type != "cuda":
        return lambda batch: each_tensor(batch, lambda tensor: tensor.to(device))
    stream, computing = torch.cuda.Stream(device), torch.cuda.default_stream(device)  # type: ignore[no-untyped-call]

    def copy(tensor: Tensor) -> Tensor:
        # page-locked memory, because only that is copied while the device computes
        copied = tensor.pin_memory().to(device, non_blocking=True)
        # its memory must not be given to the next copy while the device computes with it
        copied.record_stream(computing)
        return copied

    def move(batch: Batch) -> Batch:
        with torch.cuda.stream(stream):
            moved = each_tensor(batch, copy)
        stream.synchronize()
        return moved

    return move


def each_tensor(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    """`batch` with `change` applied to every tensor."""
    changed: dict[str, Any] = {
        name: {key: change(tensor) for key, tensor in field.items()} if isinstance(field, dict) else change(field)
        for name, field in vars(batch).items()
    }
    return Batch(**changed)
