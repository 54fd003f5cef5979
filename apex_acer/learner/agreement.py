"""How several learners agree on each step of their loop: each sends a report, and all get the same totals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from apex_acer.learner.ranks import Ranks
from apex_acer.protocol.specification import Array


class Report(NamedTuple):
    """What one learner reports about a step."""

    steps: int
    """Environment steps that it took into replay."""
    fresh: int
    """Its segments that were not trained on yet."""
    held: int
    """Environment steps in its replay, dummy steps not counted."""
    is_full: bool
    """Whether its replay can hold no more segments."""
    stops: bool = False
    """Whether it wants the run to end; the first learner's value counts."""
    row_due: bool = False
    """Whether its next row of metrics is due; the first learner's value counts."""


class Agreed(NamedTuple):
    """What all learners know after a step."""

    steps: Array
    """Environment steps that each learner took, `[learners]`."""
    fresh: Array
    """Segments of each learner that were not trained on yet, `[learners]` int64."""
    held: int
    """Environment steps in the replay of all learners."""
    is_full: bool
    """Whether the replay of every learner is full."""
    stops: bool
    row_due: bool

    @property
    def num_steps(self) -> int:
        """Environment steps that all learners took."""
        return int(self.steps.sum())


def agree(report: Report, ranks: Ranks) -> Agreed:
    """Exchanges reports with the other learners of `ranks`; a single learner agrees with itself."""
    steps, fresh, held, is_full, stops, row_due = ranks.gather(report).T  # each [learners]
    return Agreed(
        steps=steps,
        fresh=fresh.astype(np.int64),
        held=int(held.sum()),
        is_full=bool(is_full.all()),
        stops=bool(stops[0]),
        row_due=bool(row_due[0]),
    )
