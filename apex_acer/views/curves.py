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
    """Any text, as it may come from a file."""
    x: Floats
    middle: Floats
    low: Floats
    high: Floats
    behind: Sequence[Curve] = ()
    """The curves that `middle` sums up, drawn behind it."""
    reached: Curve = EMPTY
    """The end points of runs that stopped at their target and count with their last value from there on."""

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
    """Interpolates curves linearly on one grid over the range that all of them cover; a longer grid would make means jump.

    Args:
        curves: N pairs of x `[L]`, ascending, and y `[L]`, each with its own L >= 1.
        points: size of the grid; it is 1 if the common range is a point, and 0 if there is no common range.

    Returns:
        The grid `[G]` and the values `[N, G]`.
    """
    xs = [np.asarray(x, np.float64) for x, _ in curves]
    first, last = max(x[0] for x in xs), min(x[-1] for x in xs)
    grid = np.linspace(first, last, points if last > first else int(last == first))
    values = [np.interp(grid, x, np.asarray(y, np.float64)) for x, (_, y) in zip(xs, curves, strict=True)]
    return grid, np.stack(values)


def mean(curves: Sequence[Curve]) -> Curve:
    """The mean of one or more curves over the range that all cover; a single curve is returned unchanged."""
    if len(curves) == 1:
        return curves[0]
    grid, values = align(curves)
    return grid, values.mean(axis=0)


def band(label: str, curves: Sequence[Curve], reached: Sequence[Curve] = ()) -> Line:
    """The median of one or more runs between their quartiles, over the range that all cover; up to 10 curves behind it.

    Args:
        label: label of the line.
        curves: runs that ended at a budget, by a signal or by a failure, or still train. How they would have continued is
            unknown, so the line ends where the first of them ends.
        reached: runs that stopped at their target. Their policy no longer changes, so each counts with its last value up
            to the end of the line; their ends are marked.
    """
    furthest = max(x[-1] for x, _ in (*curves, *reached))
    held = [(np.append(x, furthest), np.append(y, y[-1])) for x, y in reached]
    grid, values = align([*curves, *held])
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
    """The mean of `window` values around each one, of fewer at the ends."""
    kernel = np.ones(window)
    return np.convolve(values, kernel, "same") / np.convolve(np.ones(len(values)), kernel, "same")
