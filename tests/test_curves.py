from __future__ import annotations

import numpy as np
import pytest

from apex_acer.curves import SMOOTHED_POINTS, align, band, mean, quartiles, single


def test_quartiles_leave_out_nan() -> None:
    low, median, high = quartiles([1, 2, 3, 4, 5])
    assert (low, median, high) == (2, 3, 4)
    values = [[0.0, np.nan], [1.0, 10.0], [2.0, 20.0]]
    low, median, high = quartiles(values)
    np.testing.assert_allclose([low, median, high], [[0.5, 12.5], [1.0, 15.0], [1.5, 17.5]])


def test_align_interpolates_holds_the_end_and_knows_nothing_before_the_beginning() -> None:
    grid, values = align([([0, 4], [0, 8]), ([1, 2], [5, 7])], points=5)
    np.testing.assert_array_equal(grid, [0, 1, 2, 3, 4])
    np.testing.assert_array_equal(values, [[0, 2, 4, 6, 8], [np.nan, 5, 7, 7, 7]])


def test_align_of_single_points() -> None:
    grid, values = align([([100], [3]), ([100], [4])])
    np.testing.assert_array_equal(grid, [100])
    np.testing.assert_array_equal(values, [[3], [4]])


def test_the_mean_of_curves_is_on_one_grid_and_that_of_one_is_itself() -> None:
    one, other = (np.array([0.0, 4.0]), np.array([0.0, 4.0])), (np.array([2.0, 4.0]), np.array([4.0, 6.0]))
    assert mean([one]) is one
    x, y = mean([one, other])
    np.testing.assert_allclose(y[x < 2], x[x < 2])  # where the other has not begun
    np.testing.assert_allclose(y[x >= 2], x[x >= 2] + 1)


def test_a_band_lies_between_the_quartiles() -> None:
    x = np.array([0.0, 1.0])
    line = band("five", [(x, np.full(2, level)) for level in (1.0, 2.0, 3.0, 4.0, 50.0)])
    assert {(low, middle, high) for low, middle, high in zip(line.low, line.middle, line.high, strict=True)} == {
        (2, 3, 4)
    }


def test_a_long_line_is_smoothed_with_the_curve_behind_it_and_a_short_one_is_as_it_is() -> None:
    x = np.arange(100.0)
    noise = x + np.where(x % 2 == 0, 10.0, -10.0)
    line = single("long", (x, noise))
    assert line.raw is noise
    np.testing.assert_allclose(line.middle[10:-10], x[10:-10], atol=1.0)  # windows of four values
    assert line.middle[0] == pytest.approx(noise[:2].mean())  # no zeros come in from beyond the ends
    short = single("short", (x[: SMOOTHED_POINTS - 1], noise[: SMOOTHED_POINTS - 1]))
    assert short.raw is None
    np.testing.assert_array_equal(short.middle, noise[: SMOOTHED_POINTS - 1])
