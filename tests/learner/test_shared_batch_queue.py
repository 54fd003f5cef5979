"""What follows for all learners from what each of them says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from apex_acer.config import RunConfig
from apex_acer.learner.batch_queue import BatchQueue
from apex_acer.learner.ranks import ALONE, Ranks
from apex_acer.protocol.specification import Array
from tests.learner.test_batch_queue import held, insert, make_queue, queue_run
from tests.learner.test_batch_queue_priorities import steps_run

SECOND = 0, 7, 400, False, True, False
"""What the second learner says: steps, fresh sequences, steps held, is full, stops, row due."""


class Pair(Ranks):
    """Two learners, of which the second one always says the same."""

    count = 2

    def gather(self, numbers: Sequence[float] | Array) -> Array:
        return np.array([numbers, SECOND], np.float64)


def several(ranks: Ranks, **changes: Any) -> tuple[RunConfig, BatchQueue]:
    config = queue_run(engine="ray", learner__count=2, **changes)
    return config, make_queue(config, ranks=ranks)


def test_steps_add_up_and_the_first_one_decides_when_to_stop_and_to_write() -> None:
    config, queue = several(Pair())
    insert(queue, config, 0)
    assert queue.agree(20, False, True) == (20, False, True)
    assert held(queue) == queue.storage.num_steps + 400
    assert queue.ready


@pytest.mark.parametrize(("batch_size", "ready"), [(10, True), (12, False)])
def test_a_batch_is_ready_once_all_have_the_whole_of_it(batch_size: int, ready: bool) -> None:
    """The first one has 4 of its 5 or 6 sequences, the other one 7."""
    config, queue = several(Pair(), learner__batch_size=batch_size)
    insert(queue, config, 0)
    assert queue.ready == ready
    assert queue.takes_more


def test_a_learner_alone_agrees_with_itself() -> None:
    config = queue_run()
    queue = make_queue(config, ranks=ALONE)
    assert queue.agree(7, True, False) == (7, True, False)
    assert not queue.takes_more


class Neighbour(Ranks):
    """Another learner that does as this one does, but draws a sample of a quarter of the least probability."""

    count = 2

    def gather(self, numbers: Sequence[float] | Array) -> Array:
        given = np.array(numbers, np.float64)
        return np.stack([given, given * [1, 0.25] if given.shape == (2,) else given])


def test_importance_is_relative_to_the_rarest_sample_of_all_learners() -> None:
    changes = {"learner__batch_size": 32, "replay__importance_exponent": 0.5, "replay__importance_exponent_final": 0.5}
    config = steps_run(**changes, replay__start=0, replay__capacity=400, engine="ray", learner__count=2)
    queue = make_queue(config, ranks=Neighbour())
    for number in range(4):
        insert(queue, config, number)
    assert queue.ready
    batch = queue.next_batch()
    assert len(batch.importance) == 16  # its part
    assert batch.importance.max() == pytest.approx(0.25**0.5)


def test_a_part_that_is_too_small_is_filled_with_blanks() -> None:
    class Richer(Ranks):
        """Another learner, with six sequences more."""

        count = 2

        def gather(self, numbers: Sequence[float] | Array) -> Array:
            given = np.array(numbers, np.float64)
            return np.stack([given, given + 6 * (np.arange(len(given)) == 1) if len(given) == 6 else given])

    config, queue = several(Richer(), learner__batch_size=12)
    insert(queue, config, 0)
    batch = queue.next_batch()
    assert batch.fresh.tolist() == [True] * 4 + [False] * 2
    assert batch.mask[:, :4].any(0).all()
    assert not batch.mask[:, 4:].any()
    assert not queue.num_fresh
