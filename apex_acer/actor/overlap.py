"""Overlapping unrolls: each begins with the last steps of the previous one, which warm up the recurrent state."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from apex_acer.protocol.specification import Array
from apex_acer.protocol.unroll import ARRAY_FIELDS, Unroll


def overlap(unroll: Unroll, burn_in: int, state: dict[str, Array], tail: Unroll | None) -> tuple[Unroll, Unroll | None]:
    """`unroll` `[k, N]` with `tail` in front, `[burn_in + k, N]`; and the tail of the next unroll: its last steps, masked.

    `state` `[N, …]` is the policy's state before the last `burn_in` steps. Without a `tail`, as at the start, the steps in
    front are zeros, each as if an episode began there.
    """
    if not burn_in:
        return unroll, None
    if tail is None:
        zeros = {name: np.zeros_like(part) for name, part in unroll.state.items()}
        tail = _map(lambda array: np.zeros_like(array[:burn_in]), unroll, zeros)
    k = len(unroll.mask)
    # their observations are the oldest ones of their stacks
    newest = _map(lambda array: array[k - burn_in : k].copy(), unroll, state)
    newest.mask[:] = False
    fields = {name: np.concatenate([getattr(tail, name), getattr(unroll, name)]) for name in ARRAY_FIELDS}
    extras = {name: np.concatenate([tail.extras[name], part]) for name, part in unroll.extras.items()}
    return Unroll(**fields, extras=extras, state=tail.state), newest


def _map(function: Callable[[Array], Array], unroll: Unroll, state: dict[str, Array]) -> Unroll:
    fields = {name: function(getattr(unroll, name)) for name in ARRAY_FIELDS}
    return Unroll(**fields, extras={name: function(part) for name, part in unroll.extras.items()}, state=state)
