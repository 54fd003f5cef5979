"""Sums over the weights of many items, kept so that items are drawn in proportion to them."""

from __future__ import annotations

import numpy as np

from apex_acer.protocol.unroll import Array

FAN_OUT = 16  # a draw's time goes into cumulative sums, so wider nodes cost more than the level that they save
WIDEST_ROOT = 4096  # every draw sums the root anew, which to this width takes less than one more level


class SumTree:
    """Weights of items 0 to `capacity` - 1, all 0 at first; memory is taken as they are set.

    Each level above the weights holds the sums of `FAN_OUT` neighbours below, until a level is narrow enough to be the root.
    Sums are always taken from what lies below, never added to, so they depend on the weights alone and no rounding piles up.
    """

    def __init__(self, capacity: int) -> None:
        widths = [capacity]
        while widths[-1] > WIDEST_ROOT:
            widths.append(-(-widths[-1] // FAN_OUT))
        self._nodes = [np.zeros((width, FAN_OUT)) for width in widths[1:]]  # weights first
        self._root = np.zeros(widths[-1])
        self._levels = [*(nodes.reshape(-1) for nodes in self._nodes), self._root]  # the same memory, flat
        self._weights = self._levels[0][:capacity]
        self._largest = np.finfo(np.float64).max / 2 / capacity  # so the total is finite

    @property
    def total(self) -> float:
        """Sum of all weights."""
        return float(self._root.sum())

    def __getitem__(self, items: Array) -> Array:
        """Weights of `items` `[B]` int64; `[B]` float64."""
        return self._weights[items]

    def put(self, items: Array, weights: Array) -> None:
        """Sets the weights `[B]` of `items` `[B]` int64, the last one where an item repeats.

        Raises ValueError, with nothing set, where a weight is negative, not finite, or so large that the total might not be.
        """
        allowed = (weights >= 0) & (weights <= self._largest)
        if not allowed.all():
            raise ValueError(f"require weights from 0 to {self._largest:.3g}, got {weights[~allowed][0]}")
        self._weights[items] = weights
        for nodes, sums in zip(self._nodes, self._levels[1:], strict=True):
            items = items // FAN_OUT
            sums[items] = nodes.take(items, axis=0).sum(axis=1)

    def draw(self, points: Array) -> Array:
        """The items `[B]` int64 in whose shares of the total `points` `[B]` in [0, 1) lie, in no case one of weight 0.

        Shares lie side by side in the order of items. Raises ValueError where all weights are 0.
        """
        ends = _cumulative(self._root)
        if not ends[-1]:
            raise ValueError("require a weight above 0 before a draw, got none")
        rest = _below(points * ends[-1], ends[-1])
        items = np.searchsorted(ends, rest, side="right") - 1
        rest -= ends[items]
        for nodes in reversed(self._nodes):
            ends = _cumulative(nodes.take(items, axis=0))
            rest = _below(rest, ends[:, -1])
            children = (ends > rest[:, None]).argmax(axis=1) - 1
            rest -= ends[np.arange(len(items)), children]
            items = items * FAN_OUT + children
        return items


def _cumulative(weights: Array) -> Array:
    """0 and the cumulative sums of `weights` `[..., F]`; `[..., F + 1]`."""
    ends = np.zeros((*weights.shape[:-1], weights.shape[-1] + 1))
    np.cumsum(weights, axis=-1, out=ends[..., 1:])
    return ends


def _below(rest: Array, end: Array) -> Array:
    """`rest`, or the next number below `end` where rounding took it further: the sum one level up may be larger than `end`.

    A cumulative sum is then above it; the first that is, is larger than the one before it, so its weight is not 0.
    """
    return np.minimum(rest, np.nextafter(end, 0))
