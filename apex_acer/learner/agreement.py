"""What learners that train together say to each other about each step of their loop, and what follows for all of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from apex_acer.learner.ranks import Ranks
from apex_acer.protocol.unroll import Array


class Report(NamedTuple):
    """What one learner says about a step."""

    steps: int
    """Environment steps that it took."""
    fresh: int
    """Segments it has that are still to be trained on for the first time."""
    held: int
    """Environment steps in its replay, dummy steps not counted."""
    is_full: bool
    """Whether its replay can hold no more segments."""
    stops: bool = False
    """Whether it wants the run to end; the first learner decides."""
    row_due: bool = False
    """Whether its next row of metrics is due; the first learner decides."""


class Agreed(NamedTuple):
    """What all of them know after a step."""

    steps: Array
    """Environment steps that each took, `[learners]`."""
    fresh: Array
    """Segments each has that are still to be trained on for the first time, `[learners]` int64."""
    held: int
    """Environment steps in everybody's replay."""
    is_full: bool
    """Whether everybody's replay is."""
    stops: bool
    row_due: bool

    @property
    def num_steps(self) -> int:
        """Environment steps that all of them took."""
        return int(self.steps.sum())


def agree(report: Report, ranks: Ranks) -> Agreed:
    """Tells the other learners of `ranks`, and hears from them; one learner alone agrees with itself."""
    steps, fresh, held, is_full, stops, row_due = ranks.gather(report).T  # each [learners]
    return Agreed(
        steps=steps,
        fresh=fresh.astype(np.int64),
        held=int(held.sum()),
        is_full=bool(is_full.all()),
        stops=bool(stops[0]),
        row_due=bool(row_due[0]),
    )
