"""What follows for all learners from what each of them says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from apex_acer.learner.agreement import Report, agree
from apex_acer.learner.ranks import ALONE, Ranks
from apex_acer.protocol.specification import Array

FIRST = Report(steps=20, fresh=3, held=500, is_full=True, stops=False, row_due=True)
SECOND = Report(steps=0, fresh=7, held=400, is_full=False, stops=True, row_due=False)


class Pair(Ranks):
    """Two learners, of which the second one always says the same."""

    count = 2

    def gather(self, numbers: Sequence[float] | Array) -> Array:
        return np.array([numbers, SECOND], np.float64)


def test_steps_add_up_and_the_first_one_decides_when_to_stop_and_to_write() -> None:
    agreed = agree(FIRST, Pair())
    assert agreed.num_steps == 20
    assert agreed.steps.tolist() == [20, 0]
    assert agreed.fresh.tolist() == [3, 7]
    assert (agreed.held, agreed.is_full, agreed.stops, agreed.row_due) == (900, False, False, True)


def test_a_learner_alone_agrees_with_itself() -> None:
    agreed = agree(SECOND, ALONE)
    assert (agreed.num_steps, agreed.fresh.tolist(), agreed.held) == (0, [7], 400)
    assert (agreed.is_full, agreed.stops, agreed.row_due) == (False, True, False)
