"""Curves of metrics on a common grid, their median and quartiles, and the lines of a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from apex_acer.storage.history import EMPTY, Curve, Floats

SMOOTHED_POINTS = 50  # a line with fewer points is not smoothed
MOST_SEEN = 10  # the most curves drawn behind a median
WINDOW_SHARE = 25  # a smoothed point is the mean of 1/25 of the line


@dataclass(frozen=True)
class Line:
    """A line and the band around it; arrays are `[L]`."""

    label: str
    x: Floats
    middle: Floats
    low: Floats
    high: Floats
    behind: Sequence[Curve] = ()
    """Curves that `middle` sums up, drawn behind it."""
    reached: Curve = EMPTY
    """Ends of runs that stopped at their target; from there on they count with their last value."""

    @property
    def is_empty(self) -> bool:
        return not (len(self.x) or self.behind)


@dataclass(frozen=True)
class Panel:
    """One set of axes."""

    x_label: str
    lines: Sequence[Line]
    y_label: str = ""
    title: str = ""


def quartiles(values: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """The 25 %, 50 % and 75 % quantiles over the first axis of `values` `[N, ...]`, interpolated linearly."""
    low, median, high = np.percentile(np.asarray(values, np.float64), [25, 50, 75], axis=0)
    return low, median, high


def align(curves: Sequence[tuple[ArrayLike, ArrayLike]], points: int = 200) -> tuple[Floats, Floats]:
    """Interpolates curves linearly on one grid over the range that all of them cover, so that means do not jump.

    Args:
        curves: N pairs of x `[L]`, ascending, and y `[L]`, each with its own L >= 1.
        points: size of the grid; 1 is used if the common range is a point, and 0 if there is none.

    Returns:
        The grid `[G]` and the values `[N, G]`.
    """
    xs = [np.asarray(x, np.float64) for x, _ in curves]
    first, last = max(x[0] for x in xs), min(x[-1] for x in xs)
    grid = np.linspace(first, last, points if last > first else int(last == first))
    values = [np.interp(grid, x, np.asarray(y, np.float64)) for x, (_, y) in zip(xs, curves, strict=True)]
    return grid, np.stack(values)


def mean(curves: Sequence[Curve]) -> Curve:
    """Mean of one or more curves over the range that all cover; a single curve is returned unchanged."""
    if len(curves) == 1:
        return curves[0]
    grid, values = align(curves)
    return grid, values.mean(axis=0)


def band(label: str, curves: Sequence[Curve], reached: Sequence[Curve] = ()) -> Line:
    """Median and quartiles of runs over the range that all cover, with the runs behind it if there are 10 or fewer.

    Args:
        label: label of the line.
        curves: runs that did not reach a target. How they would continue is unknown: the line ends with the shortest.
        reached: runs that stopped at their target. Their policy is final, so each counts with its last value up to the end
            of the line; their ends are marked.
    """
    furthest = max(x[-1] for x, _ in (*curves, *reached))
    extended = [(np.append(x, furthest), np.append(y, y[-1])) for x, y in reached]
    grid, values = align([*curves, *extended])
    low, median, high = quartiles(values)
    marks = np.array([x[-1] for x, _ in reached]), np.array([y[-1] for _, y in reached])
    seen = (*curves, *reached) if len(curves) + len(reached) <= MOST_SEEN else ()
    return Line(label, grid, median, low, high, seen, marks)


def single(label: str, curve: Curve) -> Line:
    """The line of one curve; a long curve is drawn behind its running mean."""
    x, y = curve
    smooth = _running_mean(y, len(y) // WINDOW_SHARE) if len(y) >= SMOOTHED_POINTS else y
    return Line(label, x, smooth, smooth, smooth, () if smooth is y else [curve])


def _running_mean(values: Floats, window: int) -> Floats:
    """Mean of the `window` values around each value, of fewer at the ends."""
    kernel = np.ones(window)
    return np.convolve(values, kernel, "same") / np.convolve(np.ones(len(values)), kernel, "same")
