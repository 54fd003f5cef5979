"""What the next batch is made of: replay that is owed at the replay ratio, or fresh segments as they come in."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from apex_acer.algorithms.algorithm import Feeding
from apex_acer.config import RunConfig
from apex_acer.config.seeds import derive_seed
from apex_acer.learner.agreement import Agreed
from apex_acer.protocol.unroll import Array
from apex_acer.replay.pace import Pace


class Portions(NamedTuple):
    """What a batch is made of; each learner gives an equal part of it."""

    fresh: Array
    """Fresh segments that each learner gives, `[learners]`; if it has fewer than its part holds, the rest is blank."""
    replayed: int
    """Items that each learner draws from replay, if none are fresh."""


class Mixture:
    """Decides from what all learners agreed on, and so in the same way for each of them; all keep one pace."""

    def __init__(self, config: RunConfig, feeding: Feeding, num_learners: int = 1) -> None:
        settings = config.algorithm
        self.trains_fresh = feeding.fresh
        """Whether segments are to be trained on as they come in."""
        self._start, self._num_learners = config.replay.start, num_learners
        self.batch_size = config.learner.batch_size // num_learners
        """Items of each learner's part."""
        self._batch_steps = config.learner.batch_size * (1 if feeding.window else settings.unroll_length)
        self.pace = Pace(settings.replay_ratio, derive_seed(config.seed, "learner", 2), feeding.draw)
        self._fresh = np.zeros(num_learners, np.int64)  # segments by learner
        self.held = 0
        """Environment steps in everybody's replay, dummy steps not counted."""
        self._replays = False  # whether there is enough in replay to begin

    def accept(self, agreed: Agreed) -> None:
        """Goes by what is there now. Steps that are not to be trained on as they come in count as fresh at once.

        Replay begins once it holds `replay.start` steps, or is full: it may never hold so many, because it is filled by
        whole segments, whose dummy steps do not count.
        """
        self._fresh, self.held = agreed.fresh, agreed.held
        self._replays = agreed.held >= self._start or agreed.is_full
        if not self.trains_fresh and agreed.steps.any():
            self.count_fresh(agreed.steps)

    @property
    def has_batch(self) -> bool:
        """Whether there is a batch; if some learners are short of fresh segments, the others make one that is whole."""
        each, whole = self.batch_size, self.batch_size * self._num_learners
        return self.pace.owes(self._batch_steps) or self._fresh.min() >= each or self._fresh.sum() >= whole

    def lacks(self, num_fresh: int) -> bool:
        """Whether a learner with `num_fresh` segments could not make a whole fresh batch by itself."""
        return num_fresh < self.batch_size * self._num_learners

    def next_portions(self) -> Portions:
        """Those of the batch that there is; replay that is owed comes before what is fresh."""
        if self.pace.owes(self._batch_steps):
            return Portions(np.zeros_like(self._fresh), self.batch_size)
        fresh = self._fresh.clip(max=self.batch_size)
        self._fresh = self._fresh - fresh
        return Portions(fresh, 0)

    def count_fresh(self, steps: Array) -> None:
        """Owes replay for fresh segments of so many `steps` each `[B]`, once replay has begun."""
        if self._replays:
            self.pace.count_fresh(steps)
