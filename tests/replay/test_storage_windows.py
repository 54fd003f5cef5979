"""Samples that are windows: the steps that begin at each step of each segment."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from apex_acer.protocol.unroll import PRIORITY, Batch, Unroll
from apex_acer.replay.sampler import Sampler
from apex_acer.replay.storage import Storage
from tests.unrolls import COUNT, PLANE, K, copy_into, plain_layout, plain_unroll

CAPACITY, UNROLLS = 7, 4  # the ring holds two unrolls and a third of one
STEPS = ("action", "reward", "terminated", "truncated", "mask")


def filled(
    window: int, stack: int = 1, *, prioritized: bool = False
) -> tuple[Storage, dict[int, tuple[Unroll, int, int]]]:
    """A storage that has wrapped around, and by slot what it holds: unroll, column, weights version."""
    storage = Storage(plain_layout(stack, prioritized=prioritized), CAPACITY, window)
    held = {}
    for version in range(UNROLLS):
        unroll = plain_unroll(version, stack, prioritized=prioritized)
        slots = storage.insert(unroll, version)
        held |= {int(slot): (unroll, column, version) for column, slot in enumerate(slots)}
    return storage, held


def assert_window(batch: Batch, place: int, unroll: Unroll, column: int, first: int, stack: int) -> None:
    """Sample `place` is what begins at step `first` of that column; beyond its end all is masked."""
    window = len(batch.action)
    last = min(first + window, K)
    for name in STEPS:
        expected = getattr(unroll, name)[first:last, column]
        np.testing.assert_array_equal(getattr(batch, name)[: last - first, place].numpy(), expected, err_msg=name)
    for name, array in unroll.extras.items():
        np.testing.assert_array_equal(batch.extras[name][: last - first, place].numpy(), array[first:last, column])
    assert not batch.mask[last - first :, place].any()
    for name in ("obs", "episode_step"):
        expected = getattr(unroll, name)[first : last + stack, column]  # the one after the last step with them
        found = getattr(batch, name)[: last + stack - first, place].numpy()
        np.testing.assert_array_equal(found, expected, err_msg=name)


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("window", [1, 3, K])
def test_every_window_is_a_slice_of_its_unroll(window: int, stack: int, prioritized: bool) -> None:
    storage, held = filled(window, stack, prioritized=prioritized)
    items = torch.randperm(CAPACITY * K, generator=torch.Generator().manual_seed(0))
    batch = storage.gather(items)
    assert batch.obs.shape == (window + stack, len(items), PLANE)
    assert batch.episode_step.shape == (window + stack, len(items))
    assert all(getattr(batch, name).shape == (window, len(items)) for name in STEPS)
    assert batch.extras.keys() == ({PRIORITY} if prioritized else set())
    for place, item in enumerate(items.tolist()):
        unroll, column, version = held[item // K]
        assert_window(batch, place, unroll, column, item % K, stack)
        assert batch.weights_version[place] == version
    assert not batch.fresh.any()
    assert (batch.importance == 1).all()


def test_items_may_repeat_and_have_weights() -> None:
    storage, held = filled(3)
    importance = torch.tensor([0.5, 0.25, 1.0])
    batch = storage.gather(torch.tensor([8, 8, 30]), importance=importance)
    for place, item in enumerate((8, 8, 30)):
        assert_window(batch, place, *held[item // K][:2], item % K, 1)
    assert torch.equal(batch.importance, importance)


def test_each_sample_counts_for_the_step_it_begins_with() -> None:
    storage, held = filled(3)
    items = torch.arange(CAPACITY * K)
    columns = [unroll.mask[:, column] for unroll, column, _ in map(held.__getitem__, range(CAPACITY))]
    expected = np.concatenate(columns).astype(int).tolist()
    assert storage.count_steps(items).tolist() == expected == storage.gather(items).mask[0].long().tolist()
    assert 0 < sum(expected) < len(items)
    assert storage.num_steps == sum(expected)
    assert (len(storage), storage.num_inserted) == (CAPACITY, UNROLLS * COUNT)


def test_draws_over_steps_are_uniform() -> None:
    storage, _ = filled(3)
    sampler = Sampler(storage, seed=1)
    counts = torch.cat([sampler.draw(100) for _ in range(200)]).bincount(minlength=CAPACITY * K)
    assert len(counts) == CAPACITY * K
    assert 1e-3 < stats.chisquare(counts.numpy()).pvalue < 1 - 1e-3


def test_only_steps_that_were_inserted_are_drawn() -> None:
    storage = Storage(plain_layout(), 1000, window=2)
    slots = storage.insert(plain_unroll(0), 0)
    assert set(Sampler(storage, seed=0).draw(500).tolist()) == set(range(len(slots) * K))


def test_another_goes_on_with_its_arrays() -> None:
    storage, _ = filled(3, stack=2)
    other = Storage(plain_layout(2), CAPACITY, window=3)
    samplers = [Sampler(each, seed) for seed, each in enumerate((storage, other))]
    samplers[0].draw(5)
    copy_into((storage, samplers[0]), (other, samplers[1]))
    for version in (4, 5):
        unroll = plain_unroll(version, 2)
        assert torch.equal(storage.insert(unroll, version), other.insert(unroll, version))
        drawn, again = (sampler.draw(40) for sampler in samplers)
        assert torch.equal(drawn, again)
        one, two = storage.gather(drawn), other.gather(drawn)
        assert torch.equal(one.obs, two.obs)
        assert torch.equal(one.mask, two.mask)
