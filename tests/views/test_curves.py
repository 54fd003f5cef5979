from __future__ import annotations

import numpy as np
import pytest

from apex_acer.storage.history import Curve, Floats
from apex_acer.views.curves import SMOOTHED_POINTS, align, band, mean, single


def test_align_interpolates_on_the_stretch_that_all_curves_cover() -> None:
    grid, values = align([([0, 4], [0, 8]), ([1, 2, 3], [5, 7, 9])], points=5)
    np.testing.assert_array_equal(grid, [1, 1.5, 2, 2.5, 3])
    np.testing.assert_array_equal(values, [[2, 3, 4, 5, 6], [5, 6, 7, 8, 9]])


def test_curves_without_a_common_stretch_have_no_grid() -> None:
    grid, values = align([([0, 1], [0, 8]), ([2, 3], [5, 7])])
    assert (grid.shape, values.shape) == ((0,), (2, 0))
    apart = [(np.array([0.0]), np.ones(1)), (np.array([1.0]), np.ones(1))]
    assert [len(part) for part in mean(apart)] == [0, 0]
    line = band("none", apart)
    assert len(line.x) == len(line.middle) == 0
    assert len(line.behind) == 2
    assert not line.is_empty
    grid, values = align([([100], [3]), ([100], [4])])
    np.testing.assert_array_equal(grid, [100])
    np.testing.assert_array_equal(values, [[3], [4]])


def test_the_mean_of_curves_is_on_one_grid_and_that_of_one_is_itself() -> None:
    one, other = (np.array([0.0, 4.0]), np.array([0.0, 4.0])), (np.array([2.0, 4.0]), np.array([4.0, 6.0]))
    assert mean([one]) is one
    x, y = mean([one, other])
    assert (x[0], x[-1]) == (2, 4)
    np.testing.assert_allclose(y, x + 1)


def test_a_band_lies_between_the_quartiles() -> None:
    x = np.array([0.0, 1.0])
    line = band("five", [(x, np.full(2, level)) for level in (1.0, 2.0, 3.0, 4.0, 50.0)])
    assert {(low, middle, high) for low, middle, high in zip(line.low, line.middle, line.high, strict=True)} == {
        (2, 3, 4)
    }


def seed_curve(first: float, last: float, level: float) -> Curve:
    """Evaluations every 1,000 steps from `first` to `last`, of returns that grow by 10 each."""
    x = np.append(np.arange(first, last, 1000.0), last)
    return x, level + 0.01 * x


def steepest(x: Floats, y: Floats) -> float:
    return float(np.max(np.abs(np.diff(y) / np.diff(x))))


@pytest.mark.parametrize("held", [(), (0, 1, 2), (1,)])
def test_where_a_seed_begins_or_ends_the_median_has_no_cliff(held: tuple[int, ...]) -> None:
    curves = [seed_curve(1000, 9000, 0), seed_curve(1100, 6200, 50), seed_curve(1040, 12_000, 100)]
    others = [curve for index, curve in enumerate(curves) if index not in held]
    line = band("seeds", others, [curves[index] for index in held])
    for values in (line.low, line.middle, line.high):
        assert steepest(line.x, values) < 0.0101  # each seed's own slope, or a half of it beside one that is held
    assert line.x[0] == 1100  # all have begun


def test_a_line_goes_as_far_as_the_first_end_that_was_no_target() -> None:
    curves = [seed_curve(1000, 9000, 0), seed_curve(1000, 6000, 0), seed_curve(1000, 12_000, 0)]
    assert band("three at a budget", curves).x[-1] == 6000
    one = band("one at its target", [curves[0], curves[2]], [curves[1]])
    assert one.x[-1] == 9000
    assert [part.tolist() for part in one.reached] == [[6000], [60]]
    everyone = band("all at their target", [], curves)
    assert everyone.x[-1] == 12_000
    assert everyone.middle[-1] == 90  # of 60, 90 and 120: each one's last value
    assert everyone.reached[0].tolist() == [9000, 6000, 12_000]
    assert one.behind == (curves[0], curves[2], curves[1])


def test_a_long_line_is_smoothed_with_the_curve_behind_it_and_a_short_one_is_as_it_is() -> None:
    x = np.arange(100.0)
    noise = x + np.where(x % 2 == 0, 10.0, -10.0)
    line = single("long", (x, noise))
    ((seen_x, seen),) = line.behind
    assert (seen_x is x, seen is noise) == (True, True)
    np.testing.assert_allclose(line.middle[10:-10], x[10:-10], atol=1.0)  # windows of four values
    assert line.middle[0] == pytest.approx(noise[:2].mean())  # no zeros come in from beyond the ends
    short = single("short", (x[: SMOOTHED_POINTS - 1], noise[: SMOOTHED_POINTS - 1]))
    assert not short.behind
    np.testing.assert_array_equal(short.middle, noise[: SMOOTHED_POINTS - 1])
