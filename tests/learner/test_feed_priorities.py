"""A feed of single steps, and priorities that find their way to what was drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from apex_acer.config import RunConfig
from apex_acer.learner.ranks import Ranks
from apex_acer.protocol.specification import Array
from apex_acer.replay.buffer import LEAST_PRIORITY
from apex_acer.replay.transfer import Transfer
from tests.learner.test_feed import Fed, copied, feed_run, insert, through_json

SAMPLING = ["uniform", "prioritized"]


def steps_run(**changes: Any) -> RunConfig:
    """A run of Ape-X DQN, whose samples are windows of 3 steps."""
    options = {"algorithm__name": "apex_dqn", "algorithm__replay_ratio": 4.0, "learner__batch_size": 16}
    return feed_run(**{"replay__start": 100, "replay__sampling": "prioritized"} | options | changes)


@pytest.fixture
def transfers() -> Iterator[list[Transfer]]:
    started = [Transfer(torch.device("cpu")) for _ in range(3)]
    yield started
    for transfer in started:
        transfer.close()


Learned = list[tuple[list[float], list[float]]]


def learn(feed: Fed) -> Learned:
    """The batches there are now: a number that only one step has, and the weight, of each sample."""
    learned = []
    while feed.ready:
        batch = feed.next_batch(0.5)
        num_fresh = int(batch.fresh.sum())
        assert num_fresh == 0
        assert not batch.fresh.any()
        assert len(batch.action) == 3
        feed.set_priorities(batch.obs[0, :, 0].abs())
        learned.append((batch.obs[0, :, 0].tolist(), batch.importance.tolist()))
    return learned


def go_on(feed: Fed, config: RunConfig, first: int, count: int) -> Learned:
    learned = []
    for number in range(first, first + count):
        insert(feed, config, number)
        learned += learn(feed)
    return learned


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("ratio", [1.0, 4.0])
@pytest.mark.parametrize("early", [False, True])
def test_steps_are_replayed_at_the_ratio_once_replay_has_started(
    transfers: list[Transfer], sampling: str, ratio: float, early: bool
) -> None:
    config = steps_run(algorithm__replay_ratio=ratio, replay__sampling=sampling)
    feed = Fed(config, transfers[0] if early else None)
    inserted = replayed = 0
    for number in range(180):
        before = feed.mixture.pace.fresh_steps
        insert(feed, config, number)
        steps = int((np.random.default_rng(number).random((5, 4)) < 0.9).sum())
        if feed.mixture.held < 100:
            assert not feed.ready
            continue
        inserted += steps
        assert feed.mixture.pace.fresh_steps - before == steps
        while feed.ready:
            batch = feed.next_batch()
            num_fresh = int(batch.fresh.sum())
            assert num_fresh == 0
            replayed += int(batch.mask[0].sum())
        assert feed.num_fresh == 0
    assert inserted > 3000
    assert replayed == pytest.approx(ratio * inserted, rel=0.01)
    assert feed.mixture.pace.ratio == pytest.approx(replayed / inserted)


@pytest.mark.parametrize("stopped_after", [0, 7, 30])
@pytest.mark.parametrize("sampling", SAMPLING)
def test_with_its_steps_another_goes_on_as_this_one_does(sampling: str, stopped_after: int) -> None:
    """Replay holds 40 segments, which 30 unrolls fill three times."""
    config = steps_run(replay__sampling=sampling)
    feed, another = Fed(config), Fed(config)
    go_on(feed, config, 0, stopped_after)
    insert(feed, config, stopped_after)  # not learned from yet
    another.restore(through_json(feed), copied(feed))
    expected = learn(feed) + go_on(feed, config, stopped_after + 1, 20)
    assert len(expected) > 40
    assert learn(another) + go_on(another, config, stopped_after + 1, 20) == expected
    assert through_json(another) == through_json(feed)
    weights = {weight for _, importance in expected for weight in importance}
    assert (weights == {1.0}) == (sampling == "uniform")


@pytest.mark.parametrize("sampling", SAMPLING)
def test_with_a_batch_on_its_way_another_begins_with_that_one(transfers: list[Transfer], sampling: str) -> None:
    config = steps_run(replay__sampling=sampling)
    feed, *others = (Fed(config, transfer) for transfer in transfers)
    go_on(feed, config, 0, 20)
    insert(feed, config, 20)
    feed.next_batch(0.5)
    for other in others:
        other.restore(through_json(feed), copied(feed))
    one, two = (learn(other) + go_on(other, config, 21, 20) for other in others)
    assert one == two
    assert len(one) > 40
    if sampling == "uniform":
        assert learn(feed) + go_on(feed, config, 21, 20) == one


def test_without_its_steps_nothing_is_owed() -> None:
    config = steps_run()
    feed, another = Fed(config), Fed(config)
    go_on(feed, config, 0, 20)
    another.restore(through_json(feed), None)
    assert not another.ready
    assert go_on(another, config, 20, 4) == []
    assert len(go_on(another, config, 24, 10)) > 20


# ── priorities ──


def weights_of(feed: Fed, items: Tensor) -> np.ndarray:
    return feed.replay.arrays()["weights"][items.numpy()]


def raised(priorities: Tensor) -> np.ndarray:
    return (priorities.numpy().astype(np.float64) + LEAST_PRIORITY) ** 0.6


@pytest.mark.parametrize("early", [False, True])
def test_priorities_go_to_the_batch_they_are_of(transfers: list[Transfer], early: bool) -> None:
    config = steps_run()
    feed = Fed(config, transfers[0] if early else None)
    for number in range(8):
        insert(feed, config, number)
    number_of = feed.replay.gather(torch.arange(8 * 4 * 5)).obs[0, :, 0]  # by item
    expected = feed.replay.arrays()["weights"].copy()
    for batch_number in range(1, 4):
        batch = feed.next_batch()
        assert early == (feed.prefetch._pending is not None)
        items = torch.stack([(number_of == number).nonzero()[0, 0] for number in batch.obs[0, :, 0]])
        feed.set_priorities(items.float() / batch_number)
        expected[items.numpy()] = raised(items.float() / batch_number)
        np.testing.assert_allclose(feed.replay.arrays()["weights"], expected, rtol=1e-12)


@pytest.mark.parametrize("early", [False, True])
def test_priorities_of_what_was_overwritten_meanwhile_are_ignored(transfers: list[Transfer], early: bool) -> None:
    config = steps_run()
    feed = Fed(config, transfers[0] if early else None)
    for number in range(10):  # replay is full
        insert(feed, config, number)
    for _ in range(2):  # the second was chosen before anything was overwritten
        batch = feed.next_batch()
    for number in range(10, 14):
        insert(feed, config, number)
    before = feed.replay.arrays()["weights"].copy()
    feed.set_priorities(torch.full((16,), 50.0))
    changed = feed.replay.arrays()["weights"] != before
    kept = set(batch.obs[0, batch.weights_version >= 4, 0].tolist())
    found = feed.replay.gather(torch.from_numpy(np.flatnonzero(changed))).obs[0, :, 0].tolist()
    assert 0 < len(kept) < 16
    assert set(found) == kept


def test_fresh_segments_have_weight_one_and_get_priorities_too() -> None:
    """Of ACER, which learns each segment once as it comes."""
    config = feed_run(algorithm__replay_ratio=3.0, replay__sampling="prioritized")
    feed, lowest = Fed(config), 1.0
    for number in range(9):
        insert(feed, config, number)
        while feed.ready:
            batch = feed.next_batch()
            num_fresh = int(batch.fresh.sum())
            assert (batch.importance[:num_fresh] == 1).all()
            if num_fresh < 4:
                assert batch.importance[num_fresh:].max() == 1
                lowest = min(lowest, batch.importance.min().item())
            slots = batch.reward[0].long()  # nothing was overwritten
            feed.set_priorities(batch.reward[0] + 1)
            np.testing.assert_allclose(weights_of(feed, slots), raised(batch.reward[0] + 1), rtol=1e-12)
    assert lowest < 0.7
    assert len(feed.replay.arrays()["weights"]) == 36


class Neighbour(Ranks):
    """Another learner that does as this one does, but draws an item of a quarter of the least probability."""

    count = 2

    def gather(self, numbers: Sequence[float] | Array) -> Array:
        given = np.array(numbers, np.float64)
        return np.stack([given, given * [1, 0.25] if given.shape == (2,) else given])


def test_importance_is_relative_to_the_rarest_sample_of_all_learners() -> None:
    changes = {"learner__batch_size": 32, "replay__importance_exponent": 0.5, "replay__importance_exponent_final": 0.5}
    config = steps_run(**changes, replay__start=0, replay__capacity=400, engine="ray", learner__count=2)
    feed = Fed(config, ranks=Neighbour())
    for number in range(4):
        insert(feed, config, number)
    assert feed.ready
    batch = feed.next_batch()
    assert len(batch.importance) == 16  # its part
    assert batch.importance.max() == pytest.approx(0.25**0.5)
