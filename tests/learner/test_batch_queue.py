"""What is learned from next, of one learner and of several, before and after a checkpoint."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from apex_acer.config import RunConfig
from apex_acer.learner.batch_queue import BatchQueue
from apex_acer.learner.parts import make_sampler, make_storage
from apex_acer.learner.ranks import ALONE, Ranks
from apex_acer.protocol.specification import Array
from apex_acer.protocol.unroll import Batch
from apex_acer.replay.rate_limiter import RateLimiter
from apex_acer.replay.sampler import LEAST_PRIORITY
from apex_acer.replay.storage import Read
from tests.runs import numbered_unroll, segment_numbers, tiny_layout, tiny_run

MIXES: dict[str, dict[str, Any]] = {
    "poisson": {"algorithm__replay_ratio": 1.5},
    "prioritized": {"algorithm__replay_ratio": 1.5, "replay__sampling": "prioritized"},
    "fresh only": {"algorithm__replay_ratio": 0.0, "learner__batch_size": 3},
}
CPU = torch.device("cpu")


def queue_run(**changes: Any) -> RunConfig:
    """Unrolls of 4 segments with 5 steps each; replay holds 40 segments, which 30 unrolls fill three times."""
    return tiny_run(**{"replay__start": 0, "replay__capacity": 200, "learner__batch_size": 4} | changes)


def steps_run(**changes: Any) -> RunConfig:
    """A run of Ape-X DQN, whose samples are windows of 3 steps."""
    options = {"algorithm__name": "apex_dqn", "algorithm__replay_ratio": 4.0, "learner__batch_size": 16}
    return queue_run(**{"replay__start": 100, "replay__sampling": "prioritized"} | options | changes)


def make_queue(config: RunConfig, ranks: Ranks = ALONE, *, early: bool = False, replays: str = "") -> BatchQueue:
    """A learner's queue, with all of `replay.capacity`; `early`: batches are gathered during the update before."""
    storage = make_storage(config, tiny_layout(config), config.replay.capacity)
    sampler = make_sampler(config, storage)
    replays = replays or config.algorithm.sampling.replays
    limiter = RateLimiter(config.algorithm.replay_ratio, 0, replays, config.replay.start)
    return BatchQueue(config, storage, sampler, limiter, CPU if early else None, ranks)


def insert(queue: BatchQueue, config: RunConfig, number: int, *, dummies: float = 0.1) -> int:
    """Inserts the numbered unroll, a share of `dummies` among its steps, and counts the others, as a learner does."""
    mask = np.random.default_rng(number).random((5, 4)) >= dummies
    queue.insert(numbered_unroll(config, number, mask=mask), number)
    queue.agree(int(mask.sum()), False, False)
    return int(mask.sum())


def replay_ratio(queue: BatchQueue) -> float:
    return queue.figures()["replay_ratio"]


def held(queue: BatchQueue) -> int:
    return int(queue.figures()["replay_steps"])


def num_fresh(queue: BatchQueue) -> int:
    """Sequences that were not trained on."""
    return int(queue.figures()["fresh_sequences"])


Drawn = list[tuple[list[float], Any]]


def learn(queue: BatchQueue) -> Drawn:
    """The batches there are now: which segments, and how many are fresh; or which steps, and the weight of each."""
    drawn: Drawn = []
    while queue.ready:
        batch = queue.next_batch(0.5)
        if batch.fresh.any() or len(batch.action) == 5:
            num = int(batch.fresh.sum())
            assert batch.fresh.tolist() == [True] * num + [False] * (len(batch.fresh) - num)
            assert torch.equal(batch.weights_version, batch.reward[0].long() // 4)
            assert (batch.importance[:num] == 1).all()
            queue.set_priorities(batch.reward[0].sin().abs())
            drawn.append((list(segment_numbers(batch)), num))
        else:
            queue.set_priorities(batch.obs[0, :, 0].abs())
            drawn.append((batch.obs[0, :, 0].tolist(), batch.importance.tolist()))
    return drawn


def go_on(queue: BatchQueue, config: RunConfig, first: int, count: int) -> Drawn:
    drawn = []
    for number in range(first, first + count):
        insert(queue, config, number)
        drawn += learn(queue)
    return drawn


def copied(queue: BatchQueue) -> Read:
    """Returns the arrays that `queue` holds now."""
    kept = {name: array.copy() for name, array in queue.arrays().items()}

    def read(name: str, shape: tuple[int, ...], dtype: str) -> Array:
        assert (shape, dtype) == (kept[name].shape, str(kept[name].dtype))
        return kept[name]

    return read


def through_json(queue: BatchQueue) -> Any:
    return json.loads(json.dumps(queue.state()))


def restore(queue: BatchQueue, state: Any, read: Read | None) -> None:
    queue.restore(state, read)
    queue.agree(0, False, False)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("changes", MIXES.values(), ids=MIXES)
def test_every_segment_is_fresh_once_and_in_order(changes: dict[str, Any], early: bool) -> None:
    config = queue_run(**changes)
    queue = make_queue(config, early=early)
    drawn = go_on(queue, config, 0, 30)
    fresh = [number for numbers, num in drawn for number in numbers[:num]]
    assert fresh == list(range(len(fresh)))
    assert 4 * 30 - len(fresh) == num_fresh(queue) < 4
    replayed = sum(len(numbers) - num for numbers, num in drawn)
    assert replayed == pytest.approx(config.algorithm.replay_ratio * len(fresh), rel=0.3)


def test_what_is_owed_of_replay_comes_before_what_is_fresh() -> None:
    config = queue_run(algorithm__replay_ratio=2.0)
    queue = make_queue(config, replays="fixed")
    for number in range(3):
        insert(queue, config, number, dummies=0.0)
    assert num_fresh(queue) == 12
    kinds = []
    while queue.ready:
        kinds.append(int(queue.next_batch().fresh.sum()))
    assert kinds == [4, 0, 0, 4, 0, 0, 4, 0, 0]
    assert num_fresh(queue) == 0
    assert replay_ratio(queue) == 2.0


@pytest.mark.parametrize(("make_run", "capacity"), [(queue_run, 203), (steps_run, 200)])  # 40 segments hold either
def test_replay_that_is_full_has_started_although_dummy_steps_are_not_held(
    make_run: Callable[..., RunConfig], capacity: int
) -> None:
    config = make_run(
        replay__capacity=capacity, replay__start=capacity, algorithm__replay_ratio=2.0, learner__batch_size=4
    )
    queue = make_queue(config)
    for number in range(40):
        assert number >= 10 or replay_ratio(queue) == 0.0
        insert(queue, config, number)
        learn(queue)
    assert held(queue) < 200
    assert replay_ratio(queue) == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize(("ratio", "sampling", "early"), [(1.0, "uniform", False), (4.0, "prioritized", True)])
def test_steps_are_replayed_at_the_ratio_once_replay_has_started(ratio: float, sampling: str, early: bool) -> None:
    config = steps_run(algorithm__replay_ratio=ratio, replay__sampling=sampling)
    queue = make_queue(config, early=early)
    inserted = replayed = 0
    for number in range(130):
        steps = insert(queue, config, number)
        if held(queue) < 100:
            assert not queue.ready
            continue
        inserted += steps
        while queue.ready:
            batch = queue.next_batch()
            assert not batch.fresh.any()
            assert len(batch.action) == 3
            replayed += int(batch.mask[0].sum())
        assert num_fresh(queue) == 0
    assert inserted > 2000
    assert replayed == pytest.approx(ratio * inserted, rel=0.01)
    assert replay_ratio(queue) == replayed / inserted


# ── a batch on its way ──


def test_what_is_on_its_way_is_not_overwritten_and_counts_as_not_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    config = queue_run(algorithm__replay_ratio=0.0)
    queue = make_queue(config, early=True)
    gather = queue.storage.gather

    def slowly(items: torch.Tensor, num_fresh: int, importance: torch.Tensor) -> Batch:
        time.sleep(0.05)
        return gather(items, num_fresh, importance)

    monkeypatch.setattr(queue.storage, "gather", slowly)
    for number in range(2):
        insert(queue, config, number, dummies=0.0)
    assert segment_numbers(queue.next_batch()) == [0, 1, 2, 3]
    assert num_fresh(queue) == 4
    assert queue.state()["sequences"]["fresh"] == [4, 5, 6, 7]
    for number in range(2, 20):  # more than replay holds
        insert(queue, config, number, dummies=0.0)
    assert segment_numbers(queue.next_batch()) == [4, 5, 6, 7]


def test_what_fails_on_its_way_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    config = queue_run()
    queue = make_queue(config, early=True)
    monkeypatch.setattr(queue.storage, "gather", lambda *chosen: 1 / 0)
    insert(queue, config, 0)
    insert(queue, config, 1)
    with pytest.raises(ZeroDivisionError):
        queue.next_batch()


# ── checkpoints ──


@pytest.mark.parametrize(
    ("config", "stopped_after", "early"),
    [
        (queue_run(**MIXES["fresh only"]), 0, True),
        (queue_run(**MIXES["poisson"]), 7, False),
        (queue_run(**MIXES["prioritized"]), 30, False),
        (queue_run(**MIXES["prioritized"]), 8, True),
        (steps_run(replay__sampling="uniform"), 20, True),
        (steps_run(), 30, False),
    ],
    ids=["fresh only", "poisson", "prioritized", "prioritized, early", "steps, early", "prioritized steps"],
)
def test_with_its_arrays_another_goes_on_as_this_one_does(config: RunConfig, stopped_after: int, early: bool) -> None:
    """A batch that is on its way at a checkpoint is chosen again, and counted once."""
    queue, another = (make_queue(config, early=early) for _ in range(2))
    go_on(queue, config, 0, stopped_after)
    for number in range(stopped_after, stopped_after + 2):  # not learned from yet
        insert(queue, config, number)
    if early:
        queue.next_batch(0.5)
        assert queue._pending
    restore(another, through_json(queue), copied(queue))
    assert early or another.figures() == queue.figures()
    expected = learn(queue) + go_on(queue, config, stopped_after + 2, 20)
    assert len(expected) > 20
    assert learn(another) + go_on(another, config, stopped_after + 2, 20) == expected
    assert another.figures() == queue.figures()
    assert through_json(another) == through_json(queue)


def test_without_its_segments_nothing_is_owed_and_replay_fills_again() -> None:
    config = queue_run(**MIXES["poisson"], replay__start=100)
    queue, another = make_queue(config), make_queue(config)
    go_on(queue, config, 0, 30)
    queue._limiter._credit = 1000.0
    restore(another, through_json(queue), None)
    assert not another.ready
    assert (held(another), num_fresh(another)) == (0, 0)
    assert replay_ratio(another) == replay_ratio(queue)  # of the whole run
    drawn = go_on(another, config, 30, 5)
    assert held(another) < 100
    assert all(len(numbers) == num for numbers, num in drawn)
    drawn += go_on(another, config, 35, 25)
    fresh = [number for numbers, num in drawn for number in numbers[:num]]
    replayed = [number for numbers, num in drawn for number in numbers[num:]]
    assert fresh == list(range(120, 120 + len(fresh)))
    assert min(replayed) >= 120
    expected = config.algorithm.replay_ratio * (len(fresh) - 20)
    assert len(replayed) == pytest.approx(expected, rel=0.25, abs=1)


# ── priorities ──


def raised(priorities: torch.Tensor) -> Array:
    weights: Array = (priorities.numpy().astype(np.float64) + LEAST_PRIORITY) ** 0.6
    return weights


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
    queue = make_queue(config)
    for number in range(9):
        insert(queue, config, number)
        while queue.ready:
            batch = queue.next_batch()
            num = int(batch.fresh.sum())
            assert (batch.importance[:num] == 1).all()
            assert batch.importance.max() == 1
            slots = batch.reward[0].long()  # nothing was overwritten
            queue.set_priorities(batch.reward[0] + 1)
            found = queue.arrays()["weights"][slots.numpy()]
            np.testing.assert_allclose(found, raised(batch.reward[0] + 1), rtol=1e-12)


# ── several learners ──


class Two(Ranks):
    """Two learners, of which the other one says what `says` makes of what this one says."""

    count = 2

    def __init__(self, says: Callable[[Array], Any]) -> None:
        self._says = says

    def gather(self, numbers: Sequence[float] | Array) -> Array:
        given = np.array(numbers, np.float64)
        return np.stack([given, self._says(given)])


def several(says: Callable[[Array], Any], **changes: Any) -> BatchQueue:
    """The queue of one of two learners; it has an unroll of four sequences."""
    config = queue_run(engine="ray", learner__count=2, **changes)
    queue = make_queue(config, Two(says))
    insert(queue, config, 0)
    return queue


@pytest.mark.parametrize(("batch_size", "ready"), [(10, True), (12, False)])
def test_a_batch_is_ready_once_all_have_the_whole_of_it(batch_size: int, ready: bool) -> None:
    """The first one has 4 of its 5 or 6 sequences, the other one 7."""
    queue = several(lambda given: given + 3 * (np.arange(6) == 1), learner__batch_size=batch_size)
    assert queue.ready == ready
    assert queue.takes_more


def test_importance_is_relative_to_the_rarest_sample_of_all_learners() -> None:
    """The other one draws a sample of a quarter of the least probability."""
    changes = {"learner__batch_size": 32, "replay__importance_exponent": 0.5, "replay__importance_exponent_final": 0.5}
    config = steps_run(**changes, replay__start=0, replay__capacity=400, engine="ray", learner__count=2)
    queue = make_queue(config, Two(lambda given: given * [1, 0.25] if given.shape == (2,) else given))
    for number in range(4):
        insert(queue, config, number)
    assert queue.ready
    batch = queue.next_batch()
    assert len(batch.importance) == 16  # its part
    assert batch.importance.max() == pytest.approx(0.25**0.5)


def test_a_part_that_is_too_small_is_filled_with_blanks() -> None:
    """The other learner has six sequences more."""
    queue = several(lambda given: given + 6 * (np.arange(len(given)) == 1) * (len(given) == 6), learner__batch_size=12)
    batch = queue.next_batch()
    assert batch.fresh.tolist() == [True] * 4 + [False] * 2
    assert batch.mask[:, :4].any(0).all()
    assert not batch.mask[:, 4:].any()
    assert not queue.num_fresh
