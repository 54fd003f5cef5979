"""The rate limiter, which says how many replayed steps are due for the fresh ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from apex_acer.protocol.specification import Array

CORRECTED_OVER = 5_000  # fresh steps


class RateLimiter:
    """Credits the steps of each fresh sequence Poisson(ratio) times, or exactly ratio times, and debits replayed batches.

    Credit that is too small for a batch is kept. The mean of a draw corrects for the draws before it, so the ratio does not
    drift as a sum of independent draws would.
    """

    def __init__(self, replay_ratio: float, seed: int, draw: str = "poisson", start: int = 0) -> None:
        """`draw` is `poisson` or `fixed`; fresh steps count once replay holds `start` environment steps or is full."""
        self._ratio, self._draw, self._start = replay_ratio, draw, start
        self._random = np.random.default_rng(seed)
        self._started = not start
        self._credit = 0.0
        self._behind = 0.0  # steps by which the draws so far fall short of the ratio
        self.fresh_steps = 0
        self.replayed_steps = 0

    @property
    def ratio(self) -> float:
        """Replayed ÷ fresh steps so far."""
        return self.replayed_steps / max(self.fresh_steps, 1)

    def owes(self, batch_steps: float) -> bool:
        """Whether the credit covers a batch of `batch_steps` environment steps."""
        return self._credit >= batch_steps

    def count_held(self, steps: int, is_full: bool) -> None:
        """Takes the number of environment steps that replay holds."""
        self._started = steps >= self._start or is_full  # masked steps do not count, so a full one may hold fewer

    def count_fresh(self, steps: Array) -> None:
        """Counts fresh sequences of `steps` `[B]` each, if replay has started, and credits their replays."""
        if not self._started:
            return
        total = int(steps.sum())
        self.fresh_steps += total
        if self._draw == "fixed":
            self._credit += self._ratio * total
            return
        mean = max(0.0, self._ratio + self._behind / CORRECTED_OVER)
        drawn = int((steps * self._random.poisson(mean, len(steps))).sum())
        self._credit += drawn
        self._behind += self._ratio * total - drawn

    def count_replayed(self, steps: int) -> None:
        """Debits the steps of one replayed batch."""
        self.replayed_steps += steps
        self._credit -= steps

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        counts = {"fresh_steps": self.fresh_steps, "replayed_steps": self.replayed_steps}
        return {**counts, "credit": self._credit, "behind": self._behind, "random": self._random.bit_generator.state}

    def restore(self, state: Mapping[str, Any], *, keep_credit: bool) -> None:
        """Continues from a `state`; without `keep_credit` no replays are due."""
        self.fresh_steps, self.replayed_steps = int(state["fresh_steps"]), int(state["replayed_steps"])
        self._credit, self._behind = (float(state[name]) if keep_credit else 0.0 for name in ("credit", "behind"))
        self._random.bit_generator.state = state["random"]
