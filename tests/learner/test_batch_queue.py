"""What is learned from next, before and after a checkpoint."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from apex_acer.config import RunConfig
from apex_acer.learner.batch_queue import BatchQueue, mover
from apex_acer.learner.parts import make_sampler, make_storage
from apex_acer.learner.ranks import ALONE, Ranks
from apex_acer.protocol.specification import Array
from apex_acer.protocol.unroll import Batch, Unroll
from apex_acer.replay.rate_limiter import RateLimiter
from tests.runs import made_up_unroll, numbered_unroll, segment_numbers, tiny_layout, tiny_run

MIXES: dict[str, dict[str, Any]] = {
    "poisson": {"algorithm__replay_ratio": 1.5},
    "prioritized": {"algorithm__replay_ratio": 1.5, "replay__sampling": "prioritized"},
    "fresh only": {"algorithm__replay_ratio": 0.0, "learner__batch_size": 3},
}


def queue_run(**changes: Any) -> RunConfig:
    """Unrolls of 4 segments with 5 steps each."""
    return tiny_run(**{"replay__start": 0, "replay__capacity": 200, "learner__batch_size": 4} | changes)


CPU = torch.device("cpu")


def make_queue(config: RunConfig, ranks: Ranks = ALONE, *, early: bool = False, replays: str = "") -> BatchQueue:
    """A learner's queue, with all of `replay.capacity`; `early`: batches are gathered during the update before."""
    storage = make_storage(config, tiny_layout(config), config.replay.capacity)
    sampler = make_sampler(config, storage)
    replays = replays or config.algorithm.sampling.replays
    limiter = RateLimiter(config.algorithm.replay_ratio, 0, replays, config.replay.start)
    return BatchQueue(config, storage, sampler, limiter, CPU if early else None, ranks)


def insert_agreed(queue: BatchQueue, unroll: Unroll, weights_version: int) -> None:
    """Inserts `unroll` and counts its steps, as a learner does."""
    queue.insert(unroll, weights_version)
    queue.agree(unroll.num_steps, False, False)


def replay_ratio(queue: BatchQueue) -> float:
    return queue.figures()["replay_ratio"]


def held(queue: BatchQueue) -> int:
    return int(queue.figures()["replay_steps"])


def num_fresh(queue: BatchQueue) -> int:
    """Sequences that were not trained on."""
    return int(queue.figures()["fresh_sequences"])


def restore(queue: BatchQueue, state: Any, fill: Callable[[str, Array], None] | None) -> None:
    queue.restore(state, fill)
    queue.agree(0, False, False)


def insert(queue: BatchQueue, config: RunConfig, number: int) -> None:
    """The numbered unroll, with a dummy step here and there."""
    mask = np.random.default_rng(number).random((5, 4)) < 0.9
    insert_agreed(queue, numbered_unroll(config, number, mask=mask), number)


Drawn = list[tuple[list[int], int]]


def learn(queue: BatchQueue) -> Drawn:
    """The batches there are now: which segments, and how many of them are fresh."""
    drawn = []
    while queue.ready:
        batch = queue.next_batch()
        num = int(batch.fresh.sum())
        assert batch.fresh.tolist() == [True] * num + [False] * (len(batch.fresh) - num)
        assert torch.equal(batch.weights_version, batch.reward[0].long() // 4)
        assert (batch.importance[:num] == 1).all()
        queue.set_priorities(batch.reward[0].sin().abs())
        drawn.append((segment_numbers(batch), num))
    return drawn


def go_on(queue: BatchQueue, config: RunConfig, first: int, count: int) -> Drawn:
    drawn = []
    for number in range(first, first + count):
        insert(queue, config, number)
        drawn += learn(queue)
    return drawn


def copied(queue: BatchQueue) -> Callable[[str, Array], None]:
    """Fills another's arrays with what `queue` holds now."""
    kept = {name: array.copy() for name, array in queue.arrays().items()}

    def fill(name: str, array: Array) -> None:
        assert (array.shape, array.dtype) == (kept[name].shape, kept[name].dtype)
        array[...] = kept[name]

    return fill


def through_json(queue: BatchQueue) -> Any:
    return json.loads(json.dumps(queue.state()))


@pytest.mark.parametrize("changes", MIXES.values(), ids=MIXES)
def test_every_segment_is_fresh_once_and_in_order(changes: dict[str, Any]) -> None:
    config = queue_run(**changes)
    drawn = go_on(make_queue(config), config, 0, 30)
    fresh = [number for numbers, num_fresh in drawn for number in numbers[:num_fresh]]
    assert fresh == list(range(len(fresh)))
    assert 4 * 30 - len(fresh) < 4
    replayed = sum(len(numbers) - num_fresh for numbers, num_fresh in drawn)
    assert replayed == pytest.approx(config.algorithm.replay_ratio * len(fresh), rel=0.3)


def test_what_is_owed_of_replay_comes_before_what_is_fresh() -> None:
    config = queue_run(algorithm__replay_ratio=2.0)
    queue = make_queue(config, replays="fixed")
    for number in range(3):
        insert_agreed(queue, numbered_unroll(config, number), 0)
    assert num_fresh(queue) == 12
    kinds = []
    while queue.ready:
        kinds.append(int(queue.next_batch().fresh.sum()))
    assert kinds == [4, 0, 0, 4, 0, 0, 4, 0, 0]
    assert num_fresh(queue) == 0
    assert replay_ratio(queue) == 2.0


def test_nothing_is_replayed_before_it_starts() -> None:
    config = queue_run(replay__start=100)
    queue = make_queue(config, replays="fixed")
    for number in range(4):
        insert_agreed(queue, numbered_unroll(config, number), number)
        assert [num_fresh for _, num_fresh in learn(queue)] == [4]
    assert replay_ratio(queue) == 0.0
    insert_agreed(queue, numbered_unroll(config, 4), 4)
    assert [num_fresh for _, num_fresh in learn(queue)] == [4, 0]


APEX_DQN = {"algorithm__name": "apex_dqn", "replay__sampling": "prioritized"}


@pytest.mark.parametrize("changes", [{}, APEX_DQN], ids=["acer", "apex_dqn"])
@pytest.mark.parametrize("capacity", [200, 203])  # 40 segments hold either
def test_replay_that_is_full_has_started_although_dummy_steps_are_not_held(
    changes: dict[str, Any], capacity: int
) -> None:
    config = queue_run(replay__capacity=capacity, replay__start=capacity, algorithm__replay_ratio=2.0, **changes)
    queue = make_queue(config)
    for number in range(10):
        assert replay_ratio(queue) == 0.0
        insert(queue, config, number)
        learn(queue)
    assert held(queue) < 200
    for number in range(10, 40):
        insert(queue, config, number)
        learn(queue)
    assert replay_ratio(queue) == pytest.approx(2.0, rel=0.1)


# ── a batch on its way ──


@pytest.mark.parametrize("changes", MIXES.values(), ids=MIXES)
def test_chosen_early_every_segment_is_still_fresh_once_and_in_order(changes: dict[str, Any]) -> None:
    config = queue_run(**changes)
    queue = make_queue(config, early=True)
    drawn = go_on(queue, config, 0, 30)
    fresh = [number for numbers, num_fresh in drawn for number in numbers[:num_fresh]]
    assert fresh == list(range(len(fresh)))
    assert 4 * 30 - len(fresh) == num_fresh(queue) < 4
    replayed = sum(len(numbers) - num_fresh for numbers, num_fresh in drawn)
    assert replayed == pytest.approx(config.algorithm.replay_ratio * len(fresh), rel=0.3)


def test_what_is_on_its_way_is_not_overwritten_and_counts_as_not_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    config = queue_run(algorithm__replay_ratio=0.0)
    queue = make_queue(config, early=True)
    gather = queue.storage.gather

    def slowly(items: torch.Tensor, num_fresh: int, importance: torch.Tensor) -> Batch:
        time.sleep(0.05)
        return gather(items, num_fresh, importance)

    monkeypatch.setattr(queue.storage, "gather", slowly)
    for number in range(2):
        insert_agreed(queue, numbered_unroll(config, number), number)
    first = queue.next_batch()
    assert segment_numbers(first) == [0, 1, 2, 3]
    assert num_fresh(queue) == 4
    assert queue.state()["sequences"]["fresh"] == [4, 5, 6, 7]
    for number in range(2, 20):  # more than replay holds
        insert_agreed(queue, numbered_unroll(config, number), number)
    second = queue.next_batch()
    assert segment_numbers(second) == [4, 5, 6, 7]


def test_what_fails_on_its_way_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    config = queue_run()
    queue = make_queue(config, early=True)
    monkeypatch.setattr(queue.storage, "gather", lambda *chosen: 1 / 0)
    insert(queue, config, 0)
    insert(queue, config, 1)
    with pytest.raises(ZeroDivisionError):
        queue.next_batch()


def test_a_batch_that_has_come_is_the_one_that_was_gathered() -> None:
    config = queue_run()
    queue = make_queue(config)
    insert(queue, config, 3)
    gathered = queue.storage.gather(torch.tensor([0, 2]), 1)
    come = mover(CPU)(gathered)
    for name, value in vars(gathered).items():
        pairs = zip(value.values(), getattr(come, name).values(), strict=True) if isinstance(value, dict) else None
        for one, other in pairs or [(value, getattr(come, name))]:
            assert torch.equal(one, other)


# ── checkpoints ──


@pytest.mark.parametrize("changes", MIXES.values(), ids=MIXES)
def test_a_batch_on_its_way_at_a_checkpoint_is_chosen_again_and_counted_once(changes: dict[str, Any]) -> None:
    config = queue_run(**changes)
    queue, another = make_queue(config, early=True), make_queue(config)
    for number in range(8):
        insert(queue, config, number)
    queue.next_batch()
    assert queue._pending
    state = through_json(queue)
    restore(another, state, copied(queue))
    inserted = int(queue.storage._steps.sum())
    waiting = int(queue.storage.count_steps(torch.tensor(state["sequences"]["fresh"])).sum())
    assert state["rate_limiter"]["fresh_steps"] == inserted - waiting > 0
    expected = [segment_numbers(queue.next_batch()) for _ in range(3)]
    assert [segment_numbers(another.next_batch()) for _ in range(3)] == expected


@pytest.mark.parametrize("stopped_after", [0, 7, 30])
@pytest.mark.parametrize("changes", MIXES.values(), ids=MIXES)
def test_with_its_segments_another_goes_on_as_this_one_does(changes: dict[str, Any], stopped_after: int) -> None:
    """Replay holds 40 segments, which 30 unrolls fill three times."""
    config = queue_run(**changes)
    queue, another = make_queue(config), make_queue(config)
    go_on(queue, config, 0, stopped_after)
    insert(queue, config, stopped_after)  # not learned from yet
    insert(queue, config, stopped_after + 1)
    restore(another, through_json(queue), copied(queue))
    assert (held(another), num_fresh(another), replay_ratio(another)) == (
        held(queue),
        num_fresh(queue),
        replay_ratio(queue),
    )
    assert num_fresh(another) >= 8
    expected = learn(queue) + go_on(queue, config, stopped_after + 2, 30)
    assert learn(another) + go_on(another, config, stopped_after + 2, 30) == expected
    assert replay_ratio(another) == replay_ratio(queue)
    assert through_json(another) == through_json(queue)


@pytest.mark.parametrize("changes", MIXES.values(), ids=MIXES)
def test_without_its_segments_nothing_is_owed_and_replay_fills_again(changes: dict[str, Any]) -> None:
    config = queue_run(**changes, replay__start=100)
    queue, another = make_queue(config), make_queue(config)
    go_on(queue, config, 0, 30)
    queue._limiter._credit = 1000.0
    restore(another, through_json(queue), None)
    assert not another.ready
    assert (held(another), num_fresh(another)) == (0, 0)
    assert replay_ratio(another) == replay_ratio(queue)  # of the whole run
    drawn: Drawn = []
    for number in range(30, 60):
        insert(another, config, number)
        started = held(another) >= 100
        batches = learn(another)
        drawn += batches
        if not started:
            assert [len(numbers) - num_fresh for numbers, num_fresh in batches] == [0] * len(batches)
    assert number > 34
    fresh = [number for numbers, num_fresh in drawn for number in numbers[:num_fresh]]
    replayed = [number for numbers, num_fresh in drawn for number in numbers[num_fresh:]]
    assert fresh == list(range(120, 120 + len(fresh)))
    assert all(number >= 120 for number in replayed)
    expected = config.algorithm.replay_ratio * (len(fresh) - 16)  # since the fifth unroll or so
    assert len(replayed) == pytest.approx(expected, rel=0.25, abs=1)


def test_arrays_are_replay_s_own_memory() -> None:
    config = queue_run()
    queue = make_queue(config)
    insert_agreed(queue, made_up_unroll(config), 0)
    arrays = queue.arrays()
    assert {len(array) for array in arrays.values()} == {4}
    assert all(array.base is not None for array in arrays.values())
    arrays["reward"][:] = 77.0
    batch = queue.next_batch()
    assert (batch.reward == 77.0).all()
