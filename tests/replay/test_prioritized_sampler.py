"""Draws in proportion to priorities, whole segments and steps alike; what becomes of priorities that come late."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from apex_acer.config import ReplayConfig
from apex_acer.protocol.specification import Array
from apex_acer.protocol.unroll import PRIORITY, Unroll
from apex_acer.replay.sampler import LEAST_PRIORITY, PrioritizedSampler
from apex_acer.replay.storage import Storage
from tests import unrolls as made
from tests.unrolls import COUNT, K, plain_layout, plain_unroll

ALPHA, BETA = 0.7, 0.4
SETTINGS = ReplayConfig(sampling="prioritized", priority_exponent=ALPHA, importance_exponent=BETA)
CAPACITY = 7  # two unrolls and a third of one
WINDOWS = pytest.mark.parametrize("window", [0, 2])


Replay = tuple[Storage, PrioritizedSampler]


def make(window: int, *, given: bool, capacity: int = CAPACITY, **settings: Any) -> Replay:
    """`given`: unrolls come with priorities."""
    exponents = dataclasses.replace(SETTINGS, **settings)
    storage = Storage(plain_layout(prioritized=given), capacity, window)
    return storage, PrioritizedSampler(storage, 0, exponents)


def insert(replay: Replay, numbers: range, *, given: bool, dummies: float = 0.2) -> list[Unroll]:
    unrolls = [plain_unroll(number, prioritized=given, dummies=dummies) for number in numbers]
    for number, unroll in zip(numbers, unrolls, strict=True):
        made.insert(replay, unroll, number)
    return unrolls


def weights(replay: Replay) -> Array:
    """Of all items held."""
    return replay[1].arrays()["weights"]


def raised(priorities: Any, alpha: float = ALPHA) -> Array:
    powers: Array = (np.asarray(priorities, np.float64) + LEAST_PRIORITY) ** alpha
    return powers


def newest_columns(arrays: list[Array]) -> Array:
    """`[CAPACITY, K]` by slot: the columns of `arrays` `[K, COUNT]` that a full ring holds."""
    held = np.zeros((CAPACITY, K), arrays[0].dtype)
    for number, column in enumerate(np.concatenate(arrays, 1).T):
        held[number % CAPACITY] = column
    return held


# ── what is drawn ──


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_steps_are_drawn_in_proportion_to_the_priorities_they_came_with(alpha: float) -> None:
    replay = make(3, given=True, priority_exponent=alpha)
    unrolls = insert(replay, range(4), given=True)
    mask = newest_columns([unroll.mask for unroll in unrolls]).ravel()
    priorities = newest_columns([unroll.extras[PRIORITY] for unroll in unrolls]).ravel()
    expected = np.where(mask, raised(priorities, alpha), 0.0)
    np.testing.assert_allclose(weights(replay), expected, rtol=1e-12)
    counts = np.bincount(torch.cat([replay[1].draw(64) for _ in range(800)]).numpy(), minlength=CAPACITY * K)
    assert 0 < (~mask).sum() == (expected == 0).sum()
    assert not counts[~mask].any()
    shares = expected[mask] / expected.sum()
    common = shares * counts.sum() > 5  # rarer ones are no business of chi-squared
    found = np.append(counts[mask][common], counts[mask][~common].sum() + 1e-9)
    wanted = np.append(shares[common], shares[~common].sum() + 1e-12) * counts.sum()
    # an item from each of as many shares of the total varies less than independent draws, never more
    assert stats.chisquare(found, wanted * found.sum() / wanted.sum()).pvalue > 1e-3


def test_each_of_a_batch_comes_from_a_share_of_its_own() -> None:
    replay = make(1, given=True, priority_exponent=0.0)
    insert(replay, range(4), given=True, dummies=0.0)
    for _ in range(20):
        assert replay[1].draw(CAPACITY * K).tolist() == list(range(CAPACITY * K))


@WINDOWS
def test_what_comes_without_a_priority_gets_the_highest_there_is(window: int) -> None:
    replay = make(window, given=False, capacity=20)
    starts = K if window else 1
    (first,) = insert(replay, range(1), given=False)
    drawable = first.mask.T.ravel() if window else first.mask.any(0)
    assert weights(replay).tolist() == drawable.astype(float).tolist()
    items = torch.from_numpy(np.flatnonzero(drawable))
    priorities = torch.linspace(0.1, 4.0, len(items)).flip(0)
    replay[1].set_priorities(items, priorities, replay[0].num_inserted)
    (second,) = insert(replay, range(1, 2), given=False)
    drawable = second.mask.T.ravel() if window else second.mask.any(0)
    np.testing.assert_allclose(weights(replay)[COUNT * starts :], np.where(drawable, raised(4.0), 0.0), rtol=1e-7)


def test_segments_of_dummy_steps_only_are_not_drawn() -> None:
    replay = make(0, given=False)
    with pytest.raises(ValueError, match="require a sequence in replay before sampling"):
        replay[1].draw(1)
    unroll = plain_unroll(0, dummies=0.0)
    unroll.mask[:, 1] = False
    made.insert(replay, unroll, 0)
    assert set(replay[1].draw(300).tolist()) == {0, 2}
    replay[1].set_priorities(torch.tensor([0, 1, 2]), torch.tensor([1.0, 9.0, 1.0]), COUNT)
    assert weights(replay)[1] == 0


# ── what corrects for it ──


def importance_of(replay: Replay, items: torch.Tensor, progress: float) -> torch.Tensor:
    probabilities = replay[1].probabilities(items)
    return replay[1].importance(probabilities, progress, probabilities.min())


@pytest.mark.parametrize(("progress", "exponent"), [(0.0, 0.4), (0.25, 0.55), (1.0, 1.0), (1.7, 1.0)])
def test_importance_is_n_times_p_to_the_minus_beta_as_a_share_of_the_largest(progress: float, exponent: float) -> None:
    replay = make(3, given=True, importance_exponent=0.4, importance_exponent_final=1.0)
    insert(replay, range(4), given=True)
    items, all_weights = replay[1].draw(32), weights(replay)
    probabilities = all_weights[items.numpy()] / all_weights.sum()
    expected = (np.count_nonzero(all_weights) * probabilities) ** -exponent
    found = importance_of(replay, items, progress)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), expected / expected.max(), rtol=1e-6)
    assert found.max() == 1 > found.min() > 0


# ── what is evicted ──


# ── priorities as they are learned ──


@WINDOWS
@pytest.mark.parametrize("before", [0, 1, 2, 4])
@pytest.mark.parametrize("meanwhile", [0, 1, 6, 7, 8])
def test_priorities_of_what_was_overwritten_meanwhile_are_ignored(window: int, before: int, meanwhile: int) -> None:
    """One segment at a time: the ring, of 7, wraps around once, more often, exactly and not at all."""
    replay = make(window, given=False)
    starts = K if window else 1
    insert(replay, range(before + 1), given=False, dummies=0.0)
    since = replay[0].num_inserted
    drawn = torch.arange(len(replay[0]) * starts)
    inserted_at = {(number % CAPACITY): number for number in range(since)}  # the newest segment in each slot
    for number in range(meanwhile):
        unroll = plain_unroll(number, dummies=0.0)
        columns = {name: value[:, :1] for name, value in vars(unroll).items() if isinstance(value, np.ndarray)}
        made.insert(replay, Unroll(**columns, extras={}, state={}), number)
    replay[1].set_priorities(drawn, torch.full(drawn.shape, 5.0), since)
    oldest = replay[0].num_inserted - CAPACITY
    still_there = np.array([inserted_at[item // starts] >= oldest for item in drawn.tolist()])
    np.testing.assert_allclose(weights(replay)[: len(drawn)], np.where(still_there, raised(5.0), 1.0))


# ── checkpoints ──
