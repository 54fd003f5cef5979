"""Planes and stacks: what an environment shows, what travels, what a network sees. Once, for every process and device."""

from __future__ import annotations

import torch
from torch import Tensor


def stack_planes(planes: Tensor, episode_step: Tensor, stack: int) -> Tensor:
    """Rebuilds network inputs from single planes.

    A plane older than the current episode is zero, as ALE has it.

    Args:
        planes: `[S-1+L, N, *plane]`, oldest first.
        episode_step: `[S-1+L, N]` steps since the reset.
        stack: S.

    Returns:
        `[L, N, S * plane[0], *plane[1:]]`, oldest plane first, in the dtype of `planes`.
    """
    if stack == 1:
        return planes
    length = len(planes) - stack + 1
    newest = episode_step[stack - 1 :]  # [L, N]
    shape = (*newest.shape, *[1] * (planes.dim() - 2))
    parts = []
    for age in range(stack - 1, -1, -1):
        part = planes[stack - 1 - age : stack - 1 - age + length]  # [L, N, *plane]
        parts.append(torch.where((newest >= age).reshape(shape), part, torch.zeros((), dtype=part.dtype)))
    return torch.cat(parts, dim=2)


def to_float(obs: Tensor, dtype: torch.dtype) -> Tensor:
    """Raw observations as the torso takes them: bytes are scaled to 0..1, other types only converted."""
    return obs.to(dtype) / 255 if obs.dtype == torch.uint8 else obs.to(dtype)
