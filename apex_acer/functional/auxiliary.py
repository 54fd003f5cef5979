"""Auxiliary tasks of UNREAL: pixel control and reward prediction (Jaderberg et al. 2017, arXiv 1611.05397, section 3)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

NUM_CLASSES = 3  # of rewards: zero, positive, negative


def pixel_change(images: Tensor, cell: int, rows: int, columns: int) -> Tensor:
    """Rewards of pixel control `[T, B, rows, columns]`: the mean absolute change of the pixels of each cell at each step.

    `images` `[T+1, B, C, H, W]` are floats; a cell has `cell` × `cell` pixels and all channels. The cells are in the middle
    of the image; pixels around them are not used.
    """
    height, width = cell * rows, cell * columns
    top, left = (images.shape[-2] - height) // 2, (images.shape[-1] - width) // 2
    middle = images[..., top : top + height, left : left + width]
    change = (middle[1:] - middle[:-1]).abs().mean(2)  # [T, B, height, width]
    return avg_pool2d(change, cell)


def reward_class(reward: Tensor) -> Tensor:
    """The class of each reward `[...]`, int64: 0 zero, 1 positive, 2 negative."""
    return (reward > 0).long() + 2 * (reward < 0).long()


def recent(features: Tensor, first: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """Features of the newest `num` observations at each step, the oldest first, and whether the sequence has them all.

    `features` `[T, B, F]` are of the sequence's observations, `first` `[T, B]` bool is true where an episode begins.
    Observations before that are zero, and not missing. Returns `[T, B, num * F]` and `[T, B]` bool.
    """
    step = torch.arange(len(first), device=first.device).unsqueeze(-1)
    begin = (
        torch.where(first, step, -1).cummax(0).values
    )  # [T, B] step at which the episode begins; −1: before the sequence
    parts = [
        torch.where((step - lag >= begin.clamp(min=0)).unsqueeze(-1), features.roll(lag, 0), 0.0)
        for lag in reversed(range(num))
    ]
    return torch.cat(parts, -1), (step >= num - 1) | (begin >= 0)


def skewed_weights(classes: Tensor, mask: Tensor, importance: Tensor) -> Tensor:
    """Weights `[T, B]` that sum to 1, of which steps with a non-zero reward have half and steps without one the other half.

    So a weighted sum is the mean over skewed samples of the steps where `mask` `[T, B]` is true. If one of the two kinds is
    missing, the other has all of the weight; without either all weights are 0. Within a kind a step counts by the
    `importance` `[B]` of its sequence. `classes` `[T, B]` are as in `reward_class`.
    """
    kinds = torch.stack([mask & (classes != 0), mask & (classes == 0)])  # [2, T, B]
    weights = kinds * importance
    totals = weights.sum((1, 2), keepdim=True)
    num_kinds = (totals > 0).sum().clamp(min=1)
    return (weights / torch.where(totals > 0, totals, 1.0)).sum(0) / num_kinds
