"""Frame stacking: unrolls hold single planes, from which every process and device rebuilds a network's inputs here."""

from __future__ import annotations

import torch
from torch import Tensor


def stack_planes(planes: Tensor, episode_step: Tensor, stack: int) -> Tensor:
    """Rebuilds network inputs `[L, N, S * plane[0], *plane[1:]]` from single planes `[S-1+L, N, *plane]`, oldest first.

    S is `stack`. `episode_step` `[S-1+L, N]` counts steps since the reset: planes from before it are zero, as in ALE.
    """
    if stack == 1:
        return planes
    length, (channels, *rest) = len(planes) - stack + 1, planes.shape[2:]
    # channels are innermost in memory, which is fastest for convolutions on a CPU
    stacked = planes.new_empty(length, planes.shape[1], *rest, stack * channels)
    newest = episode_step[stack - 1 :]  # [L, N]
    for index in range(stack):
        part = stacked[..., index * channels : (index + 1) * channels]
        part.copy_(planes[index : index + length].movedim(2, -1))
        before = newest < stack - 1 - index  # the episode
        # on a GPU a mask is faster, because indices would make the CPU wait for their number
        part[before if part.is_cuda else before.nonzero(as_tuple=True)] = 0
    return stacked.movedim(-1, 2)


def to_float(obs: Tensor, dtype: torch.dtype) -> Tensor:
    """Raw observations in `dtype`; bytes are scaled to 0..1."""
    return obs.to(dtype).mul_(1 / 255) if obs.dtype == torch.uint8 else obs.to(dtype)
