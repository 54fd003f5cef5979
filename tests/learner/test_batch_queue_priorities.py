"""Batches of single steps, and priorities that find their way to what was drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from apex_acer.config import RunConfig
from apex_acer.learner.batch_queue import BatchQueue
from apex_acer.replay.sampler import LEAST_PRIORITY
from tests.learner.test_batch_queue import (
    copied,
    held,
    insert,
    make_queue,
    num_fresh,
    queue_run,
    replay_ratio,
    restore,
    through_json,
)

SAMPLING = ["uniform", "prioritized"]


def steps_run(**changes: Any) -> RunConfig:
    """A run of Ape-X DQN, whose samples are windows of 3 steps."""
    options = {"algorithm__name": "apex_dqn", "algorithm__replay_ratio": 4.0, "learner__batch_size": 16}
    return queue_run(**{"replay__start": 100, "replay__sampling": "prioritized"} | options | changes)


Learned = list[tuple[list[float], list[float]]]


def learn(queue: BatchQueue) -> Learned:
    """The batches there are now: a number that only one step has, and the weight, of each sample."""
    learned = []
    while queue.ready:
        batch = queue.next_batch(0.5)
        assert not batch.fresh.any()
        assert len(batch.action) == 3
        queue.set_priorities(batch.obs[0, :, 0].abs())
        learned.append((batch.obs[0, :, 0].tolist(), batch.importance.tolist()))
    return learned


def go_on(queue: BatchQueue, config: RunConfig, first: int, count: int) -> Learned:
    learned = []
    for number in range(first, first + count):
        insert(queue, config, number)
        learned += learn(queue)
    return learned


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("ratio", [1.0, 4.0])
@pytest.mark.parametrize("early", [False, True])
def test_steps_are_replayed_at_the_ratio_once_replay_has_started(sampling: str, ratio: float, early: bool) -> None:
    config = steps_run(algorithm__replay_ratio=ratio, replay__sampling=sampling)
    queue = make_queue(config, early=early)
    inserted = replayed = 0
    for number in range(180):
        before = queue._limiter.fresh_steps
        insert(queue, config, number)
        steps = int((np.random.default_rng(number).random((5, 4)) < 0.9).sum())
        if held(queue) < 100:
            assert not queue.ready
            continue
        inserted += steps
        assert queue._limiter.fresh_steps - before == steps
        while queue.ready:
            batch = queue.next_batch()
            assert not batch.fresh.any()
            replayed += int(batch.mask[0].sum())
        assert num_fresh(queue) == 0
    assert inserted > 3000
    assert replayed == pytest.approx(ratio * inserted, rel=0.01)
    assert replay_ratio(queue) == pytest.approx(replayed / inserted)


@pytest.mark.parametrize("stopped_after", [0, 7, 30])
@pytest.mark.parametrize("sampling", SAMPLING)
def test_with_its_steps_another_goes_on_as_this_one_does(sampling: str, stopped_after: int) -> None:
    """Replay holds 40 segments, which 30 unrolls fill three times."""
    config = steps_run(replay__sampling=sampling)
    queue, another = make_queue(config), make_queue(config)
    go_on(queue, config, 0, stopped_after)
    insert(queue, config, stopped_after)  # not learned from yet
    restore(another, through_json(queue), copied(queue))
    expected = learn(queue) + go_on(queue, config, stopped_after + 1, 20)
    assert len(expected) > 40
    assert learn(another) + go_on(another, config, stopped_after + 1, 20) == expected
    assert through_json(another) == through_json(queue)
    weights = {weight for _, importance in expected for weight in importance}
    assert (weights == {1.0}) == (sampling == "uniform")


@pytest.mark.parametrize("sampling", SAMPLING)
def test_with_a_batch_on_its_way_another_begins_with_that_one(sampling: str) -> None:
    config = steps_run(replay__sampling=sampling)
    queue, *others = (make_queue(config, early=True) for _ in range(3))
    go_on(queue, config, 0, 20)
    insert(queue, config, 20)
    queue.next_batch(0.5)
    for other in others:
        restore(other, through_json(queue), copied(queue))
    one, two = (learn(other) + go_on(other, config, 21, 20) for other in others)
    assert one == two
    assert len(one) > 40
    if sampling == "uniform":
        assert learn(queue) + go_on(queue, config, 21, 20) == one


def test_without_its_steps_nothing_is_owed() -> None:
    config = steps_run()
    queue, another = make_queue(config), make_queue(config)
    go_on(queue, config, 0, 20)
    restore(another, through_json(queue), None)
    assert not another.ready
    assert go_on(another, config, 20, 4) == []
    assert len(go_on(another, config, 24, 10)) > 20


# ── priorities ──


def weights_of(queue: BatchQueue, items: Tensor) -> np.ndarray:
    return queue.arrays()["weights"][items.numpy()]


def raised(priorities: Tensor) -> np.ndarray:
    return (priorities.numpy().astype(np.float64) + LEAST_PRIORITY) ** 0.6


@pytest.mark.parametrize("early", [False, True])
def test_priorities_go_to_the_batch_they_are_of(early: bool) -> None:
    config = steps_run()
    queue = make_queue(config, early=early)
    for number in range(8):
        insert(queue, config, number)
    number_of = queue.storage.gather(torch.arange(8 * 4 * 5)).obs[0, :, 0]  # by item
    expected = queue.arrays()["weights"].copy()
    for batch_number in range(1, 4):
        batch = queue.next_batch()
        assert early == (queue._pending is not None)
        items = torch.stack([(number_of == number).nonzero()[0, 0] for number in batch.obs[0, :, 0]])
        queue.set_priorities(items.float() / batch_number)
        expected[items.numpy()] = raised(items.float() / batch_number)
        np.testing.assert_allclose(queue.arrays()["weights"], expected, rtol=1e-12)


@pytest.mark.parametrize("early", [False, True])
def test_priorities_of_what_was_overwritten_meanwhile_are_ignored(early: bool) -> None:
    config = steps_run()
    queue = make_queue(config, early=early)
    for number in range(10):  # replay is full
        insert(queue, config, number)
    for _ in range(2):  # the second was chosen before anything was overwritten
        batch = queue.next_batch()
    for number in range(10, 14):
        insert(queue, config, number)
    before = queue.arrays()["weights"].copy()
    queue.set_priorities(torch.full((16,), 50.0))
    changed = queue.arrays()["weights"] != before
    kept = set(batch.obs[0, batch.weights_version >= 4, 0].tolist())
    found = queue.storage.gather(torch.from_numpy(np.flatnonzero(changed))).obs[0, :, 0].tolist()
    assert 0 < len(kept) < 16
    assert set(found) == kept


def test_fresh_sequences_have_weight_one_and_get_priorities_too() -> None:
    """Of ACER, which learns each segment once as it comes."""
    config = queue_run(algorithm__replay_ratio=3.0, replay__sampling="prioritized")
    queue, lowest = make_queue(config), 1.0
    for number in range(9):
        insert(queue, config, number)
        while queue.ready:
            batch = queue.next_batch()
            num = int(batch.fresh.sum())
            assert (batch.importance[:num] == 1).all()
            if num < 4:
                assert batch.importance[num:].max() == 1
                lowest = min(lowest, batch.importance.min().item())
            slots = batch.reward[0].long()  # nothing was overwritten
            queue.set_priorities(batch.reward[0] + 1)
            np.testing.assert_allclose(weights_of(queue, slots), raised(batch.reward[0] + 1), rtol=1e-12)
    assert lowest < 0.7
    assert len(queue.arrays()["weights"]) == 36
