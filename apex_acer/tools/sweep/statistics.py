"""Statistics over the seeds of a run, by the conventions of rliable (Agarwal et al. 2021, arXiv 2108.13264)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from apex_acer.storage.history import Floats

CUT = 0.25  # share of the values that is left out at each end
CONFIDENCE = 0.95
RESAMPLES = 10_000


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


def interquartile_mean(values: ArrayLike) -> float:
    """Mean of the middle half of `values` `[N]`, N >= 1; floor(N / 4) values are left out at each end."""
    return float(stats.trim_mean(_finite(values), CUT))


def bootstrap_interval(values: ArrayLike, seed: int = 0) -> Interval | None:
    """The 95 % percentile bootstrap interval of the interquartile mean of `values` `[N]`, the scores of N runs.

    Runs are drawn with replacement, which for one task is rliable's stratified bootstrap. None if N is 1.
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


def _finite(values: ArrayLike) -> Floats:
    scores = np.asarray(values, np.float64)
    if scores.ndim != 1 or scores.size == 0 or not np.isfinite(scores).all():
        raise ValueError(f"Require one or more finite values in one dimension, got {scores}")
    return scores
