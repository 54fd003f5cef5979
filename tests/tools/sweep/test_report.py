from __future__ import annotations

import numpy as np
import pytest

from apex_acer.tools.sweep.report import bootstrap_interval, interquartile_mean


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7, 0, 6, 1, 5, 2, 4, 3], 3.5),  # 2, 3, 4, 5
        ([0, 1, 2, 3, 1000], 2.0),  # one at each end is left out: 1, 2, 3
        ([3, 4, 8], 5.0),  # floor(3 / 4) = 0
        ([2.5], 2.5),
    ],
)
def test_interquartile_mean(values: list[float], expected: float) -> None:
    assert interquartile_mean(list(values)) == pytest.approx(expected)


@pytest.mark.parametrize("values", [[], [1.0, np.nan], [np.inf], [[1.0], [2.0]]])
def test_scores_that_are_none_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="finite values in one dimension"):
        interquartile_mean(values)
    with pytest.raises(ValueError, match="finite values in one dimension"):
        bootstrap_interval(values)


def test_interval_is_the_one_of_rliable() -> None:
    """`rliable.library.get_interval_estimates` (1.2.0, 50,000 draws, the interquartile mean of 0 to 7) gave 1.5 to 5.5."""
    assert bootstrap_interval(range(8)) == pytest.approx((1.5, 5.5), abs=0.26)  # the ends are multiples of 1/4
    assert bootstrap_interval([0.0, 1.0]) == (0.0, 1.0)
    assert bootstrap_interval([4.0] * 5) == (4.0, 4.0)
    assert bootstrap_interval([4.0]) is None


def test_interval_repeats_and_narrows_with_more_runs() -> None:
    scores = np.random.default_rng(3).normal(size=80)
    few, many = bootstrap_interval(scores[:10]), bootstrap_interval(scores)
    assert few
    assert many
    assert bootstrap_interval(scores) == many
    assert few[0] < many[0] < interquartile_mean(scores) < many[1] < few[1]
