"""Curves of metrics: many on one grid, their median and quartiles, and the lines that a figure has of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from apex_acer.output import printable

Floats = NDArray[np.float64]
Curve = tuple[Floats, Floats]
"""x and y, each `[L]`."""
EMPTY: Curve = (np.empty(0), np.empty(0))

SMOOTHED_POINTS = 50  # a line of fewer shows its points as they are
WINDOW_SHARE = 25  # a smoothed point is the mean of this part of the line


class Quartiles(NamedTuple):
    """The 25 %, 50 % and 75 % quantiles."""

    low: Floats
    median: Floats
    high: Floats


@dataclass(frozen=True)
class Line:
    """A line and the band around it; arrays are `[L]`."""

    label: str
    x: Floats
    middle: Floats
    low: Floats
    high: Floats
    raw: Floats | None = None
    """What `middle` was smoothed from, to be seen behind it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", printable(self.label))  # it comes from a file


@dataclass(frozen=True)
class Panel:
    """One set of axes."""

    x_label: str
    lines: Sequence[Line]
    y_label: str = ""
    title: str = ""


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


def mean(curves: Sequence[Curve]) -> Curve:
    """The mean of one or more curves; of one, that curve."""
    if len(curves) == 1:
        return curves[0]
    grid, values = align(curves)
    return grid, np.nanmean(values, axis=0)


def band(label: str, curves: Sequence[Curve]) -> Line:
    """The median of one or more curves, between their quartiles."""
    grid, values = align(curves)
    low, median, high = quartiles(values)
    return Line(label, grid, median, low, high)


def single(label: str, curve: Curve) -> Line:
    """One curve; a long one as its running mean, with the curve itself behind."""
    x, y = curve
    smooth = _running_mean(y, len(y) // WINDOW_SHARE) if len(y) >= SMOOTHED_POINTS else y
    return Line(label, x, smooth, smooth, smooth, None if smooth is y else y)


def _running_mean(values: Floats, window: int) -> Floats:
    """Of as many values as the window holds, fewer at the ends."""
    kernel = np.ones(window)
    return np.convolve(values, kernel, "same") / np.convolve(np.ones(len(values)), kernel, "same")
