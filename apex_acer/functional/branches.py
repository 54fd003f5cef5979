"""Several choices at once (`MultiDiscrete` actions) as one: their combinations count in C order, the last choice fastest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def joint_logits(logits: Tensor, sizes: Sequence[int]) -> Tensor:
    """The logits `[..., Π sizes]` of all combinations of independent choices, from those `[..., Σ sizes]` of each."""
    joint, *others = torch.split(logits, list(sizes), -1)
    for branch in others:
        joint = (joint.unsqueeze(-1) + branch.unsqueeze(-2)).flatten(-2)
    return joint


def split_choices(combination: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """The choice `[...]` of each branch in a `combination` `[...]` int64."""
    choices = []
    for size in sizes[:0:-1]:
        choices.append(combination % size)
        combination = combination // size
    return [combination, *choices[::-1]]


def join_choices(choices: Iterable[Tensor], sizes: Sequence[int]) -> Tensor:
    """The combination `[...]` int64 of one choice `[...]` of each branch."""
    combination, *others = choices
    for choice, size in zip(others, sizes[1:], strict=True):
        combination = combination * size + choice
    return combination
