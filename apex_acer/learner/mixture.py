"""Decides what the next batch is made of: replayed items, if the replay ratio is owed any, or else fresh segments."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from apex_acer.config import RunConfig
from apex_acer.config.seeds import derive_seed
from apex_acer.learner.agreement import Agreed
from apex_acer.protocol.specification import Array
from apex_acer.replay.pace import Pace


class Portions(NamedTuple):
    """What a batch is made of."""

    fresh: Array
    """Fresh segments that each learner contributes, `[learners]`."""
    replayed: int
    """Items that each learner draws from replay; 0 if the batch is fresh."""


class Mixture:
    """Decides from what all learners agreed on, so each of them decides the same."""

    def __init__(self, config: RunConfig, num_learners: int = 1) -> None:
        settings, sampling = config.algorithm, config.algorithm.sampling
        self.trains_fresh = sampling.fresh
        """Whether each segment is trained on once as it arrives."""
        self._start, self._num_learners = config.replay.start, num_learners
        self.batch_size = config.learner.batch_size // num_learners
        """Items in each learner's part of a batch."""
        self._batch_steps = config.learner.batch_size * (1 if sampling.n_steps else settings.unroll_length)
        self.pace = Pace(settings.replay_ratio, derive_seed(config.seed, "learner", 2), sampling.replays)
        self._fresh = np.zeros(num_learners, np.int64)  # segments by learner
        self.held = 0
        """Environment steps in the replay of all learners, dummy steps not counted."""
        self._replays = False  # whether replay has begun

    def accept(self, agreed: Agreed) -> None:
        """Takes what the learners agreed on. If segments are not trained on as they arrive, their steps count as fresh now.

        Replay begins when it holds `replay.start` steps or is full: it is filled by whole segments, whose dummy steps do
        not count, so a full replay may hold fewer steps.
        """
        self._fresh, self.held = agreed.fresh, agreed.held
        self._replays = agreed.held >= self._start or agreed.is_full
        if not self.trains_fresh and agreed.steps.any():
            self.count_fresh(agreed.steps)

    @property
    def has_batch(self) -> bool:
        """Whether there is a batch: replay is owed, or every learner has its part, or together they have a whole batch."""
        each, whole = self.batch_size, self.batch_size * self._num_learners
        return self.pace.owes(self._batch_steps) or self._fresh.min() >= each or self._fresh.sum() >= whole

    def lacks(self, num_fresh: int) -> bool:
        """Whether a learner with `num_fresh` fresh segments has too few for a whole batch of its own."""
        return num_fresh < self.batch_size * self._num_learners

    def next_portions(self) -> Portions:
        """What the next batch is made of; replay that is owed comes before fresh segments."""
        if self.pace.owes(self._batch_steps):
            return Portions(np.zeros_like(self._fresh), self.batch_size)
        fresh = self._fresh.clip(max=self.batch_size)
        self._fresh = self._fresh - fresh
        return Portions(fresh, 0)

    def count_fresh(self, steps: Array) -> None:
        """Owes replay for fresh segments of `steps` `[B]` each, if replay has begun."""
        if self._replays:
            self.pace.count_fresh(steps)
