"""A sum tree, which draws items in proportion to their weights."""

from __future__ import annotations

import numpy as np

from apex_acer.protocol.specification import Array

FAN_OUT = 16  # a draw spends its time on cumulative sums, so wider nodes would cost more than the levels they save
WIDEST_ROOT = 4096  # every draw sums the root, which up to this width takes less time than one more level


class SumTree:
    """Weights of items 0 to `capacity` - 1, all 0 at first; memory is allocated as they are set.

    Each level above the weights holds the sums of `FAN_OUT` neighbours below, up to a level that is narrow enough to be the
    root. A sum is always computed from the level below and never incremented, so rounding errors do not accumulate.
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
        return float(self._root.sum())

    def __getitem__(self, items: Array) -> Array:
        """The weights `[B]` float64 of `items` `[B]` int64."""
        return self._weights[items]

    def put(self, items: Array, weights: Array) -> None:
        """Sets the weights `[B]` of `items` `[B]` int64; if an item repeats, its last weight counts.

        Raises ValueError, with nothing set, if a weight is negative, not finite, or so large that the total may overflow.
        """
        allowed = (weights >= 0) & (weights <= self._largest)
        if not allowed.all():
            raise ValueError(f"require weights from 0 to {self._largest:.3g}, got {weights[~allowed][0]}")
        self._weights[items] = weights
        for nodes, sums in zip(self._nodes, self._levels[1:], strict=True):
            items = items // FAN_OUT
            sums[items] = nodes.take(items, axis=0).sum(axis=1)

    def draw(self, points: Array) -> Array:
        """The items `[B]` int64 at `points` `[B]` in [0, 1) of the cumulative weights over the total.

        No item of weight 0 is drawn. Raises ValueError if all weights are 0.
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
    """`rest`, or the next number below `end` if rounding has taken it beyond: the sum one level up may exceed `end`.

    Some cumulative sum is then larger than the result; the first such sum exceeds the one before it, so its weight is not 0.
    """
    return np.minimum(rest, np.nextafter(end, 0))
