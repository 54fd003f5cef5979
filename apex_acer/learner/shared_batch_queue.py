"""The batch queue of one of several learners, which all hand over their parts of the same batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apex_acer.config import RunConfig, Sampling
from apex_acer.learner.batch_queue import BatchQueue, Selection, Transfer
from apex_acer.learner.ranks import Ranks
from apex_acer.protocol.specification import Array
from apex_acer.replay.rate_limiter import RateLimiter
from apex_acer.replay.sampler import Sampler
from apex_acer.replay.storage import Storage


class SharedBatchQueue(BatchQueue):
    """A batch queue whose learner has its own sequences, and contributes an equal part of every batch.

    Each decides from what all of them agreed on, so all decide the same. If one has too few samples, blank ones fill up.
    """

    def __init__(
        self,
        config: RunConfig,
        sampling: Sampling,
        storage: Storage,
        sampler: Sampler,
        limiter: RateLimiter,
        transfer: Transfer | None,
        ranks: Ranks,
    ) -> None:
        """The generators of all `limiter`s must be seeded alike."""
        super().__init__(config, sampling, storage, sampler, limiter, transfer)
        self._ranks = ranks
        self._batch_size //= ranks.count
        self._fresh_of = np.zeros(ranks.count, np.int64)  # fresh sequences of each learner

    @property
    def takes_more(self) -> bool:
        """Whether this learner's fresh sequences are no whole batch, which it may have to contribute alone."""
        return self.num_fresh < self._batch_size * self._ranks.count

    def agree(self, num_steps: int, stops: bool, row_due: bool) -> tuple[int, bool, bool]:
        """The steps that all have inserted, and whether the first learner wants to stop and to write its row."""
        storage = self.storage
        told = num_steps, self.num_fresh, storage.num_steps, storage.is_full, stops, row_due
        steps, fresh, held, full, stop, due = self._ranks.gather(told).T  # each [learners]
        self._fresh_of = fresh.astype(np.int64)
        self._count(steps, int(held.sum()), bool(full.all()))
        return int(steps.sum()), bool(stop[0]), bool(due[0])

    def restore(self, state: Mapping[str, Any], fill: Callable[[str, Array], None] | None) -> None:
        """Continues from the first learner's `state`; the others keep their own generators."""
        own = self._sampler.generator.get_state()
        super().restore(state, fill)
        if self._ranks.rank:
            self._sampler.generator.set_state(own)

    def _has_batch(self) -> bool:
        """Whether replay is due, or each learner has its fresh part, or together they have a whole batch."""
        part, fresh = self._batch_size, self._fresh_of
        return bool(
            self._limiter.owes(self._batch_steps) or fresh.min() >= part or fresh.sum() >= part * self._ranks.count
        )

    def _select_fresh(self) -> Selection:
        taken = self._fresh_of.clip(max=self._batch_size)
        self._fresh_of = self._fresh_of - taken
        samples, steps = self._pop_fresh(taken[self._ranks.rank]), np.zeros(self._batch_size)
        steps[: len(samples)] = self.storage.count_steps(samples)
        self._limiter.count_fresh(self._ranks.gather(steps).ravel())
        return self._filled(samples, len(samples), torch.ones(len(samples)))

    def _select_replayed(self, progress: float) -> Selection:
        samples = torch.empty(0, dtype=torch.int64)
        if len(self.storage):
            samples = self._sampler.draw(self._batch_size)
        own = float(self.storage.count_steps(samples).sum()), self._sampler.least_probability(samples)
        steps, least = self._ranks.gather(own).T
        self._limiter.count_replayed(int(steps.sum()))
        return self._filled(samples, 0, self._sampler.importance(samples, progress, least.min()))

    def _filled(self, samples: Tensor, num_fresh: int, importance: Tensor) -> Selection:
        num_padding = self._batch_size - len(samples)
        samples = torch.cat([samples, samples.new_zeros(num_padding)])
        importance = torch.cat([importance, torch.ones(num_padding)])
        return Selection(samples, num_fresh, importance, self.storage.num_inserted, num_padding)
