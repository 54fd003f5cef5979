from __future__ import annotations

import math

import numpy as np
import pytest

from apex_acer.protocol.specification import Array
from apex_acer.replay.sum_tree import FAN_OUT, WIDEST_ROOT, SumTree

# from the root alone to two levels below it, even and uneven
CAPACITIES = pytest.mark.parametrize("capacity", [1, 7, WIDEST_ROOT, FAN_OUT * WIDEST_ROOT, 100_003])
LAST_POINT = np.nextafter(1, 0)


def filled(capacity: int, items: Array, weights: Array) -> SumTree:
    tree = SumTree(capacity)
    tree.put(items, weights)
    return tree


def scattered(rng: np.random.Generator, capacity: int, num: int) -> Array:
    """Up to `num` different items in order, the first and the last of all among them."""
    return np.unique(np.append(rng.integers(0, capacity, num - 2), [0, capacity - 1]))


@CAPACITIES
def test_every_point_finds_its_item(capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    items = scattered(rng, capacity, 1000)
    weights = rng.multinomial(2**14, rng.dirichlet(np.full(len(items), 0.3)))  # whole numbers, so nothing rounds
    tree = filled(capacity, items, weights.astype(np.float64))
    assert tree.total == 2**14
    order = rng.permutation(2**14)
    for points in (order / 2**14, np.nextafter((order + 1) / 2**14, 0)):  # on the borders of shares, and just before
        drawn = tree.draw(points)
        assert drawn.dtype == np.int64
        np.testing.assert_array_equal(drawn, np.repeat(items, weights)[order])


def with_neighbours(points: Array) -> Array:
    """`points` and the next numbers on both sides, those in [0, 1), in no order."""
    points = np.concatenate([points, np.nextafter(points, -1), np.nextafter(points, 2), [0, LAST_POINT]])
    return points[(points >= 0) & (points < 1)]


@pytest.mark.parametrize("capacity", [7, WIDEST_ROOT + 1, 1_200_007])  # up to three levels below the root
@pytest.mark.parametrize(("low", "high"), [(0, 0.5), (-15, 15), (-323, -322), (300, 300.5)])
def test_weight_zero_is_never_drawn(capacity: int, low: float, high: float) -> None:
    rng = np.random.default_rng(capacity)
    for trial in range(40):
        start = int(rng.integers(0, max(1, capacity - 40)))  # trees in which rounding of a few sums is all there is
        items = np.arange(start, min(start + 40, capacity)) if trial % 2 else scattered(rng, capacity, 40)
        weights = 10 ** rng.uniform(low, high, len(items)) * (rng.random(len(items)) < 0.4)
        weights[rng.integers(len(items))] = 10**high
        tree = filled(capacity, items, weights)
        drawn = tree.draw(with_neighbours(np.append(np.cumsum(weights) / weights.sum(), rng.random(300))))
        assert np.all(tree[drawn] > 0)
        assert tree.draw(np.zeros(1)) == items[weights > 0][0]


def test_sums_depend_on_the_weights_alone() -> None:
    """After a million updates nothing has drifted, and not a bit depends on the order of events."""
    rng = np.random.default_rng(0)
    capacity, batch = 70_001, 20_000
    tree, weights = SumTree(capacity), np.zeros(capacity)
    for _ in range(1_000_000 // batch):
        items, values = rng.integers(0, capacity, batch), 10 ** rng.uniform(-8, 8, batch)
        tree.put(items, values)
        weights[items] = values  # of an item that repeats, the last one counts
    tree.put(np.arange(0, capacity, 2), rng.random((capacity + 1) // 2))  # what was large is small now
    weights[::2] = tree[np.arange(0, capacity, 2)]
    np.testing.assert_array_equal(tree[np.arange(capacity)], weights)
    assert tree.total == pytest.approx(math.fsum(weights), rel=1e-12)
    anew = filled(capacity, np.arange(capacity), weights)
    for level, other in zip(tree._levels, anew._levels, strict=True):
        np.testing.assert_array_equal(level, other)


def test_batches_may_be_empty() -> None:
    tree = filled(5000, np.array([3]), np.array([1.0]))
    none = np.empty(0, np.int64)
    tree.put(none, np.empty(0))
    assert tree.total == 1
    assert tree[none].shape == tree.draw(np.empty(0)).shape == (0,)


@CAPACITIES
def test_nothing_is_drawn_where_all_weights_are_zero(capacity: int) -> None:
    items = np.arange(capacity)
    tree = filled(capacity, items, np.random.default_rng(0).random(capacity))
    assert tree.total > 0
    tree.put(items, np.zeros(capacity))
    assert tree.total == 0
    with pytest.raises(ValueError, match="require a weight above 0 before a draw, got none"):
        tree.draw(np.array([0.5]))


@pytest.mark.parametrize("weight", [-1e-300, np.nan, np.inf, 1e306])
def test_weights_that_no_share_follows_from_are_refused(weight: float) -> None:
    tree, items = filled(5000, np.arange(5000), np.ones(5000)), np.array([17, 18])
    with pytest.raises(ValueError, match=r"require weights from 0 to .*e\+304, got ") as refused:
        tree.put(items, np.array([2.0, weight]))
    assert str(refused.value).endswith(str(weight))
    assert tree[items].tolist() == [1, 1]
    assert tree.total == 5000


def test_the_largest_and_the_smallest_weights_have_a_total() -> None:
    tree = SumTree(5000)
    tree.put(np.arange(5000), np.full(5000, tree._largest))
    assert math.isfinite(tree.total)
    assert tree.draw(np.array([0, 2500.5 / 5000, LAST_POINT])).tolist() == [0, 2500, 4999]
    tree = filled(5000, np.array([4321]), np.array([5e-324]))
    assert tree.total == 5e-324
    assert tree.draw(np.array([0, 0.3, 0.7, LAST_POINT])).tolist() == [4321] * 4
