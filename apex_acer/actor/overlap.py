"""Overlapping unrolls: each begins with the last steps of the one before it, which warm up the recurrent state."""

from __future__ import annotations

import dataclasses

import numpy as np

from apex_acer.protocol.specification import Array
from apex_acer.protocol.unroll import ARRAY_FIELDS, Unroll


class Overlap:
    """Puts the last `num` steps of an unroll, masked, in front of the next one of the same environments."""

    def __init__(self, num: int) -> None:
        self.num = num
        self._tail: Unroll | None = None  # the last `num` steps of the unroll before

    def extend(self, unroll: Unroll, state: dict[str, Array]) -> Unroll:
        """`unroll` `[k, N]` as `[num + k, N]`; `state` `[N, ...]` is what the policy remembered before its last `num` steps.

        The first unroll has blank steps in front, each as if an episode began there.
        """
        if not self.num:
            return unroll
        tail = self._tail or _blank(unroll, self.num)
        self._tail = _rows(unroll, slice(len(unroll.mask) - self.num, len(unroll.mask)), state)
        fields = {name: np.concatenate([getattr(tail, name), getattr(unroll, name)]) for name in ARRAY_FIELDS}
        extras = {name: np.concatenate([tail.extras[name], part]) for name, part in unroll.extras.items()}
        return Unroll(**fields, extras=extras, state=tail.state)


def _rows(unroll: Unroll, rows: slice, state: dict[str, Array]) -> Unroll:
    """The steps `rows`, masked; their observations are the oldest ones of their stacks."""
    fields = {name: getattr(unroll, name)[rows].copy() for name in ARRAY_FIELDS}
    fields["mask"][:] = False
    extras = {name: part[rows].copy() for name, part in unroll.extras.items()}
    return Unroll(**fields, extras=extras, state=state)


def _blank(unroll: Unroll, num: int) -> Unroll:
    first = _rows(unroll, slice(num), {name: np.zeros_like(part) for name, part in unroll.state.items()})
    fields = {name: np.zeros_like(getattr(first, name)) for name in ARRAY_FIELDS}
    extras = {name: np.zeros_like(part) for name, part in first.extras.items()}
    return dataclasses.replace(first, **fields, extras=extras)
