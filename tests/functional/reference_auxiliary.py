"""UNREAL's auxiliary tasks (arXiv 1611.05397) in float64, one step, one column, one cell at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from apex_acer.protocol.specification import Array
from tests.functional.reference_on_policy import steps_from


def cell_change(before: Array, after: Array, cell: int, top: int, left: int) -> float:
    """The mean absolute change of the pixels `[C, H, W]` of one cell."""
    changes = [
        abs(float(after[channel, y, x]) - float(before[channel, y, x]))
        for channel in range(len(before))
        for y in range(top, top + cell)
        for x in range(left, left + cell)
    ]
    return sum(changes) / len(changes)


def pixel_change(images: Array, cell: int, rows: int, columns: int) -> Array:
    """`[T, B, rows, columns]` of images `[T+1, B, C, H, W]`, whose cells are in the middle."""
    found = np.zeros((len(images) - 1, images.shape[1], rows, columns))
    top, left = (images.shape[3] - cell * rows) // 2, (images.shape[4] - cell * columns) // 2
    for t, b, i, j in np.ndindex(found.shape):
        before, after = images[t, b], images[t + 1, b]
        found[t, b, i, j] = cell_change(before, after, cell, top + cell * i, left + cell * j)
    return found


def n_step_target(batch: dict[str, Array], reward: Array, value: Array, t: int, b: int, gamma: float) -> float:
    """Σ γ^i r_(t+i) up to the end of the episode or of the sequence, and V of what follows unless it terminated there.

    `reward` `[T]` and `value` `[T+1]` are of column b.
    """
    steps = steps_from(batch, t, b)
    if not steps:
        return float(value[t])
    target = sum(gamma ** (s - t) * float(reward[s]) for s in steps)
    last = steps[-1]
    return target + (0.0 if batch["terminated"][last, b] else gamma ** (last + 1 - t) * float(value[last + 1]))


def newest_frames(first: Array, t: int, b: int, num: int) -> list[int | None]:
    """The rows of the newest `num` observations of the episode, oldest first; None before the episode, −1 if unknown."""
    rows: list[int | None] = []
    row: int | None = t
    for _ in range(num):
        rows.insert(0, row)
        if row is not None and row >= 0:
            row = None if first[row, b] else row - 1
    return rows


def reward_class(reward: float) -> int:
    return 0 if reward == 0 else 1 if reward > 0 else 2


def cross_entropy(logits: Sequence[float], chosen: int) -> float:
    return math.log(sum(math.exp(x) for x in logits)) - logits[chosen]


def skewed_mean(losses: Mapping[tuple[int, int], Any], classes: Mapping[tuple[int, int], int], weight: Array) -> Any:
    """The expected loss of a draw that is of a step with a reward in half of the cases, by the weight of its sequence.

    Losses are numbers or tensors by step and column.
    """
    means: list[Any] = []
    for kind in (True, False):
        of_kind = [place for place in losses if (classes[place] != 0) == kind]
        total = float(sum(float(weight[b]) for _, b in of_kind))
        if total:
            means.append(sum(float(weight[b]) * losses[t, b] for t, b in of_kind) / total)
    return sum(means) / len(means) if means else 0.0
