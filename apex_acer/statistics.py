"""Statistics over the seeds of a run, by the conventions of rliable (Agarwal et al. 2021, arXiv 2108.13264)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Floats = NDArray[np.float64]

CUT = 0.25  # of the values, at each end
CONFIDENCE = 0.95
RESAMPLES = 10_000


class Quartiles(NamedTuple):
    """The 25 %, 50 % and 75 % quantiles."""

    low: Floats
    median: Floats
    high: Floats


class Interval(NamedTuple):
    """The two ends of a confidence interval."""

    low: float
    high: float


def interquartile_mean(values: ArrayLike) -> float:
    """Mean of the middle half of `values` `[N]`, N >= 1; floor(N / 4) values are left out at each end."""
    return float(stats.trim_mean(_finite(values), CUT))


def bootstrap_interval(values: ArrayLike, seed: int = 0) -> Interval | None:
    """The 95 % percentile bootstrap interval of the interquartile mean of `values` `[N]`, the scores of N runs.

    Runs are drawn with replacement, which for one task is rliable's stratified bootstrap. None where N is 1.
    """
    scores = _finite(values)
    if len(scores) == 1:
        return None
    result = stats.bootstrap(
        (scores,),
        lambda sample, axis: stats.trim_mean(sample, CUT, axis=axis),
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    return Interval(float(result.confidence_interval.low), float(result.confidence_interval.high))


def quartiles(values: ArrayLike) -> Quartiles:
    """Quartiles over the first axis of `values` `[N, ...]`, interpolated linearly; NaN is left out."""
    return Quartiles(*np.nanpercentile(np.asarray(values, np.float64), [25, 50, 75], axis=0))


def align(curves: Sequence[tuple[ArrayLike, ArrayLike]], points: int = 200) -> tuple[Floats, Floats]:
    """Curves on one grid, so that they can be summed up point by point.

    Between its points a curve is interpolated linearly. After its end its last value is held, because the run has stopped
    and its policy stays what it is; before its beginning it is NaN.

    Args:
        curves: N pairs of x `[L]`, ascending, and y `[L]`, each with its own L >= 1.
        points: of the grid, which spans all x; it has one point where all x are equal.

    Returns:
        The grid `[G]` and the values `[N, G]`.
    """
    xs = [np.asarray(x, np.float64) for x, _ in curves]
    first, last = min(x[0] for x in xs), max(x[-1] for x in xs)
    grid = np.linspace(first, last, points if last > first else 1)
    values = [np.interp(grid, x, np.asarray(y, np.float64), left=np.nan) for x, (_, y) in zip(xs, curves, strict=True)]
    return grid, np.stack(values)


def _finite(values: ArrayLike) -> Floats:
    scores = np.asarray(values, np.float64)
    if scores.ndim != 1 or scores.size == 0 or not np.isfinite(scores).all():
        raise ValueError(f"Require one or more finite values in one dimension, got {scores}")
    return scores
