"""What is learned from next, before and after a checkpoint."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from apex_acer.algorithms import algorithm_class
from apex_acer.config import RunConfig
from apex_acer.learner.agreement import Report, agree
from apex_acer.learner.feed import Feed, Selection, make_replay
from apex_acer.learner.mixture import Mixture
from apex_acer.learner.prefetch import Prefetch
from apex_acer.learner.ranks import ALONE, Ranks
from apex_acer.protocol.specification import Array
from apex_acer.protocol.unroll import Batch, Unroll
from apex_acer.replay.transfer import Transfer
from tests.runs import made_up_unroll, numbered_unroll, segment_numbers, tiny_layout, tiny_run

MIXES: dict[str, dict[str, Any]] = {
    "poisson": {"algorithm__replay_ratio": 1.5},
    "prioritized": {"algorithm__replay_ratio": 1.5, "replay__sampling": "prioritized"},
    "fresh only": {"algorithm__replay_ratio": 0.0, "learner__batch_size": 3},
}


def feed_run(**changes: Any) -> RunConfig:
    """Unrolls of 4 segments with 5 steps each."""
    return tiny_run(**{"replay__start": 0, "replay__capacity": 200, "learner__batch_size": 4} | changes)


CPU = torch.device("cpu")


class Fed:
    """A feed, put together and agreed on as a learner does it, with `changes` to the algorithm's `Feeding`."""

    def __init__(
        self, config: RunConfig, transfer: Transfer | None = None, ranks: Ranks = ALONE, **changes: Any
    ) -> None:
        feeding = algorithm_class(config.algorithm.name).feeding(config)._replace(**changes)
        self.replay = make_replay(config, feeding, tiny_layout(config), config.replay.capacity)
        self.mixture = Mixture(config, feeding, ranks.count)
        self.feed = Feed(self.replay, self.mixture, ranks)
        self.prefetch = Prefetch(self.feed, transfer)
        self.ranks = ranks
        self.chosen: Selection

    def insert(self, unroll: Unroll, weights_version: int) -> None:
        self.prefetch.wait()
        self.feed.insert(unroll, weights_version)
        self.agree(unroll.num_steps)

    def agree(self, steps: int) -> None:
        report = Report(steps, self.feed.num_fresh, self.replay.num_steps, self.replay.is_full)
        self.mixture.accept(agree(report, self.ranks))

    @property
    def ready(self) -> bool:
        return self.prefetch.ready

    @property
    def num_fresh(self) -> int:
        return self.prefetch.num_fresh

    def next_batch(self, progress: float = 0.0) -> Batch:
        self.chosen, batch = self.prefetch.next_batch(progress)
        return batch

    def set_priorities(self, priorities: torch.Tensor) -> None:
        self.feed.set_priorities(self.chosen, priorities)

    def restore(self, state: Any, fill: Callable[[str, Array], None] | None) -> None:
        self.feed.restore(state, fill)
        self.agree(0)


def insert(feed: Fed, config: RunConfig, number: int) -> None:
    """The numbered unroll, with a dummy step here and there."""
    mask = np.random.default_rng(number).random((5, 4)) < 0.9
    feed.insert(numbered_unroll(config, number, mask=mask), weights_version=number)


Drawn = list[tuple[list[int], int]]


def learn(feed: Fed) -> Drawn:
    """The batches there are now: which segments, and how many of them are fresh."""
    drawn = []
    while feed.ready:
        batch = feed.next_batch()
        num_fresh = int(batch.fresh.sum())
        assert batch.fresh.tolist() == [True] * num_fresh + [False] * (len(batch.fresh) - num_fresh)
        assert torch.equal(batch.weights_version, batch.reward[0].long() // 4)
        assert (batch.importance[:num_fresh] == 1).all()
        feed.set_priorities(batch.reward[0].sin().abs())
        drawn.append((segment_numbers(batch), num_fresh))
    return drawn


def go_on(feed: Fed, config: RunConfig, first: int, count: int) -> Drawn:
    drawn = []
    for number in range(first, first + count):
        insert(feed, config, number)
        drawn += learn(feed)
    return drawn


def copied(feed: Fed) -> Callable[[str, Array], None]:
    """Fills another's arrays with what `feed` holds now."""
    held = {name: array.copy() for name, array in feed.replay.arrays().items()}

    def fill(name: str, array: Array) -> None:
        assert (array.shape, array.dtype) == (held[name].shape, held[name].dtype)
        array[...] = held[name]

    return fill


def through_json(feed: Fed) -> Any:
    return json.loads(json.dumps(feed.prefetch.state()))


@pytest.mark.parametrize("changes", MIXES.values(), ids=MIXES)
def test_every_segment_is_fresh_once_and_in_order(changes: dict[str, Any]) -> None:
    config = feed_run(**changes)
    drawn = go_on(Fed(config), config, 0, 30)
    fresh = [number for numbers, num_fresh in drawn for number in numbers[:num_fresh]]
    assert fresh == list(range(len(fresh)))
    assert 4 * 30 - len(fresh) < 4
    replayed = sum(len(numbers) - num_fresh for numbers, num_fresh in drawn)
    assert replayed == pytest.approx(config.algorithm.replay_ratio * len(fresh), rel=0.3)


def test_what_is_owed_of_replay_comes_before_what_is_fresh() -> None:
    config = feed_run(algorithm__replay_ratio=2.0)
    feed = Fed(config, draw="fixed")
    for number in range(3):
        feed.insert(numbered_unroll(config, number), 0)
    assert feed.num_fresh == 12
    kinds = []
    while feed.ready:
        kinds.append(int(feed.next_batch().fresh.sum()))
    assert kinds == [4, 0, 0, 4, 0, 0, 4, 0, 0]
    assert feed.num_fresh == 0
    assert feed.mixture.pace.ratio == 2.0


def test_nothing_is_replayed_before_it_starts() -> None:
    config = feed_run(replay__start=100)
    feed = Fed(config, draw="fixed")
    for number in range(4):
        feed.insert(numbered_unroll(config, number), number)
        assert [num_fresh for _, num_fresh in learn(feed)] == [4]
    assert feed.mixture.pace.ratio == 0.0
    feed.insert(numbered_unroll(config, 4), 4)
    assert [num_fresh for _, num_fresh in learn(feed)] == [4, 0]


APEX_DQN = {"algorithm__name": "apex_dqn", "replay__sampling": "prioritized"}


@pytest.mark.parametrize("changes", [{}, APEX_DQN], ids=["acer", "apex_dqn"])
@pytest.mark.parametrize("capacity", [200, 203])  # 40 segments hold either
def test_replay_that_is_full_has_started_although_dummy_steps_are_not_held(
    changes: dict[str, Any], capacity: int
) -> None:
    config = feed_run(replay__capacity=capacity, replay__start=capacity, algorithm__replay_ratio=2.0, **changes)
    feed = Fed(config)
    for number in range(10):
        assert feed.mixture.pace.ratio == 0.0
        insert(feed, config, number)
        learn(feed)
    assert feed.mixture.held < 200
    for number in range(10, 40):
        insert(feed, config, number)
        learn(feed)
    assert feed.mixture.pace.ratio == pytest.approx(2.0, rel=0.1)


# ── a batch on its way ──


@pytest.fixture
def transfer() -> Iterator[Transfer]:
    started = Transfer(CPU)
    yield started
    started.close()


@pytest.mark.parametrize("changes", MIXES.values(), ids=MIXES)
def test_chosen_early_every_segment_is_still_fresh_once_and_in_order(
    changes: dict[str, Any], transfer: Transfer
) -> None:
    config = feed_run(**changes)
    feed = Fed(config, transfer)
    drawn = go_on(feed, config, 0, 30)
    fresh = [number for numbers, num_fresh in drawn for number in numbers[:num_fresh]]
    assert fresh == list(range(len(fresh)))
    assert 4 * 30 - len(fresh) == feed.num_fresh < 4
    replayed = sum(len(numbers) - num_fresh for numbers, num_fresh in drawn)
    assert replayed == pytest.approx(config.algorithm.replay_ratio * len(fresh), rel=0.3)


def test_what_is_on_its_way_is_not_overwritten_and_counts_as_not_trained_on(
    transfer: Transfer, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = feed_run(algorithm__replay_ratio=0.0)
    feed = Fed(config, transfer)
    gather = feed.replay.gather

    def slowly(items: torch.Tensor, num_fresh: int, importance: torch.Tensor) -> Batch:
        time.sleep(0.05)
        return gather(items, num_fresh, importance)

    monkeypatch.setattr(feed.replay, "gather", slowly)
    for number in range(2):
        feed.insert(numbered_unroll(config, number), number)
    first = feed.next_batch()
    assert segment_numbers(first) == [0, 1, 2, 3]
    assert feed.num_fresh == 4
    assert feed.prefetch.state()["segments"]["fresh"] == [4, 5, 6, 7]
    for number in range(2, 20):  # more than replay holds
        feed.insert(numbered_unroll(config, number), number)
    second = feed.next_batch()
    assert segment_numbers(second) == [4, 5, 6, 7]


def test_what_fails_on_its_way_is_raised(transfer: Transfer, monkeypatch: pytest.MonkeyPatch) -> None:
    config = feed_run()
    feed = Fed(config, transfer)
    monkeypatch.setattr(feed.replay, "gather", lambda *chosen: 1 / 0)
    insert(feed, config, 0)
    insert(feed, config, 1)
    with pytest.raises(ZeroDivisionError):
        feed.next_batch()


def test_a_batch_that_has_come_is_the_one_that_was_gathered(transfer: Transfer) -> None:
    config = feed_run()
    feed = Fed(config)
    insert(feed, config, 3)
    gathered = feed.replay.gather(torch.tensor([0, 2]), 1)
    come = transfer.start(lambda: gathered).result()
    for name, value in vars(gathered).items():
        pairs = zip(value.values(), getattr(come, name).values(), strict=True) if isinstance(value, dict) else None
        for one, other in pairs or [(value, getattr(come, name))]:
            assert torch.equal(one, other)


# ── checkpoints ──


@pytest.mark.parametrize("changes", MIXES.values(), ids=MIXES)
def test_a_batch_on_its_way_at_a_checkpoint_is_chosen_again_and_counted_once(
    changes: dict[str, Any], transfer: Transfer
) -> None:
    config = feed_run(**changes)
    feed, another = Fed(config, transfer), Fed(config)
    for number in range(8):
        insert(feed, config, number)
    feed.next_batch()
    assert feed.prefetch._pending
    state = through_json(feed)
    another.restore(state, copied(feed))
    inserted = int(feed.replay._steps.sum())
    waiting = int(feed.replay.count_steps(torch.tensor(state["segments"]["fresh"])).sum())
    assert state["pace"]["fresh_steps"] == inserted - waiting > 0
    expected = [segment_numbers(feed.next_batch()) for _ in range(3)]
    assert [segment_numbers(another.next_batch()) for _ in range(3)] == expected


@pytest.mark.parametrize("stopped_after", [0, 7, 30])
@pytest.mark.parametrize("changes", MIXES.values(), ids=MIXES)
def test_with_its_segments_another_goes_on_as_this_one_does(changes: dict[str, Any], stopped_after: int) -> None:
    """Replay holds 40 segments, which 30 unrolls fill three times."""
    config = feed_run(**changes)
    feed, another = Fed(config), Fed(config)
    go_on(feed, config, 0, stopped_after)
    insert(feed, config, stopped_after)  # not learned from yet
    insert(feed, config, stopped_after + 1)
    another.restore(through_json(feed), copied(feed))
    assert (another.mixture.held, another.num_fresh, another.mixture.pace.ratio) == (
        feed.mixture.held,
        feed.num_fresh,
        feed.mixture.pace.ratio,
    )
    assert another.num_fresh >= 8
    expected = learn(feed) + go_on(feed, config, stopped_after + 2, 30)
    assert learn(another) + go_on(another, config, stopped_after + 2, 30) == expected
    assert another.mixture.pace.ratio == feed.mixture.pace.ratio
    assert through_json(another) == through_json(feed)


@pytest.mark.parametrize("changes", MIXES.values(), ids=MIXES)
def test_without_its_segments_nothing_is_owed_and_replay_fills_again(changes: dict[str, Any]) -> None:
    config = feed_run(**changes, replay__start=100)
    feed, another = Fed(config), Fed(config)
    go_on(feed, config, 0, 30)
    feed.mixture.pace._credit = 1000.0
    another.restore(through_json(feed), None)
    assert not another.ready
    assert (another.mixture.held, another.num_fresh) == (0, 0)
    assert another.mixture.pace.ratio == feed.mixture.pace.ratio  # of the whole run
    drawn: Drawn = []
    for number in range(30, 60):
        insert(another, config, number)
        started = another.mixture.held >= 100
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
    config = feed_run()
    feed = Fed(config)
    feed.insert(made_up_unroll(config), 0)
    arrays = feed.replay.arrays()
    assert {len(array) for array in arrays.values()} == {4}
    assert all(array.base is not None for array in arrays.values())
    arrays["reward"][:] = 77.0
    batch = feed.next_batch()
    assert (batch.reward == 77.0).all()
