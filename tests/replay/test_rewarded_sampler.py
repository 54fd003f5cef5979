"""Draws of samples with and without a reward by turns, and the weights that correct a loss for them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from apex_acer.learner.parts import make_sampler
from apex_acer.protocol.specification import Array
from apex_acer.protocol.unroll import Unroll
from apex_acer.replay.sampler import RewardedSampler
from apex_acer.replay.storage import Storage
from tests.runs import tiny_run
from tests.unrolls import COUNT, K, insert, plain_layout, plain_unroll

CAPACITY = 7  # two unrolls and a third of one
WINDOWS = pytest.mark.parametrize("window", [0, 2])


def make(window: int) -> tuple[Storage, RewardedSampler]:
    storage = Storage(plain_layout(), CAPACITY, window)
    return storage, RewardedSampler(storage, 0)


def sparse(number: int, share: float = 0.15) -> Unroll:
    """A plain unroll in which a `share` of the steps have a reward, and all masked ones, where it does not count."""
    unroll = plain_unroll(number)
    pays = np.random.default_rng(100 + number).random(unroll.reward.shape) < share
    pays |= ~unroll.mask
    return dataclasses.replace(unroll, reward=np.where(pays, unroll.reward, 0).astype(np.float32))


def filled(window: int, share: float = 0.15) -> tuple[tuple[Storage, RewardedSampler], Array]:
    """A ring that has been overwritten, and whether each of its samples has a reward."""
    replay, rewarded = make(window), np.zeros((CAPACITY, K), bool)
    for number in range(4):
        unroll = sparse(number, share)
        insert(replay, unroll, number)
        for column in range(COUNT):
            pays = (unroll.reward[:, column] != 0) & unroll.mask[:, column]
            rewarded[(number * COUNT + column) % CAPACITY] = pays
    of_samples: Array = rewarded.ravel() if window else np.asarray(rewarded.any(1))
    return replay, of_samples


@WINDOWS
def test_half_of_a_batch_has_a_reward_and_each_sample_of_a_kind_is_as_likely(window: int) -> None:
    (storage, sampler), rewarded = filled(window)
    assert 0 < rewarded.sum() < storage.num_samples
    drawn = torch.stack([sampler.draw(8) for _ in range(1500)])
    assert (rewarded[drawn.numpy()].sum(1) == 4).all()
    counts = np.bincount(drawn.flatten().numpy(), minlength=len(rewarded))
    for kind in (rewarded, ~rewarded):
        expected = drawn.numel() / 2 / kind.sum()
        np.testing.assert_allclose(counts[kind], expected, atol=5 * expected**0.5)
        chance = sampler.probabilities(torch.from_numpy(kind.nonzero()[0]))
        np.testing.assert_allclose(chance, 0.5 / kind.sum())
    odd = torch.stack([sampler.draw(1) for _ in range(400)])
    assert 150 < rewarded[odd.numpy()].sum() < 250


@WINDOWS
def test_weighted_means_are_those_of_uniform_draws(window: int) -> None:
    (storage, sampler), _ = filled(window)
    every = torch.arange(storage.num_samples)
    chance = sampler.probabilities(every)
    weights = sampler.importance(chance, 0.0, chance.min()).numpy()
    np.testing.assert_allclose(chance.sum(), 1)
    np.testing.assert_allclose(chance * weights, 1 / storage.num_samples, rtol=1e-6)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_without_one_kind_all_are_of_the_other(share: float) -> None:
    (storage, sampler), rewarded = filled(0, share)
    assert rewarded.all() == bool(share)
    drawn = sampler.draw(200)
    assert set(drawn.tolist()) == set(range(storage.num_samples))
    chance = sampler.probabilities(drawn)
    np.testing.assert_allclose(chance, 1 / storage.num_samples)
    np.testing.assert_allclose(sampler.importance(chance, 0.0, chance.min()), 1)


def test_an_empty_replay_is_no_sample() -> None:
    with pytest.raises(ValueError, match="require a sequence in replay"):
        make(0)[1].draw(1)


@WINDOWS
def test_what_is_restored_draws_the_same(window: int) -> None:
    (storage, sampler), rewarded = filled(window)
    saved = {name: array.copy() for name, array in {**storage.arrays(), **sampler.arrays()}.items()}
    np.testing.assert_array_equal(saved["rewarded"], rewarded)
    other_storage, other = make(window)
    other_storage.restore(storage.num_inserted, lambda name, *_: saved[name])
    other.restore(lambda name, *_: saved[name])
    other.generator.set_state(sampler.generator.get_state())
    assert torch.equal(other.draw(50), sampler.draw(50))


def test_a_run_asks_for_it_by_name() -> None:
    config = tiny_run(replay__sampling="rewarded")
    assert type(make_sampler(config, Storage(plain_layout(), CAPACITY))) is RewardedSampler
