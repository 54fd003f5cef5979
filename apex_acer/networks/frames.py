"""Frame stacking: unrolls hold single planes, from which every process and device rebuilds a network's inputs here."""

from __future__ import annotations

import torch
from torch import Tensor

WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # integers of so many bytes


def stack_planes(planes: Tensor, episode_step: Tensor, stack: int) -> Tensor:
    """Rebuilds network inputs `[L, N, S * plane[0], *plane[1:]]` from single planes `[S-1+L, N, *plane]`, oldest first.

    S is `stack`. `episode_step` `[S-1+L, N]` counts steps since the reset: planes from before it are zero, as in ALE.
    """
    if stack == 1:
        return planes
    channels, stacked = planes.shape[2], _interleave(planes, stack)  # [L, N, *rest, S * C]
    newest = episode_step[stack - 1 :]  # [L, N]
    for index in range(stack - 1):
        part = stacked[..., index * channels : (index + 1) * channels]
        before = newest < stack - 1 - index  # the episode
        # on a GPU a mask is faster, because indices would make the CPU wait for their number
        part[before if part.is_cuda else before.nonzero(as_tuple=True)] = 0
    return stacked.movedim(-1, 2)


def _interleave(planes: Tensor, stack: int) -> Tensor:
    """Planes `[S-1+L, N, C, *rest]` as stacks `[L, N, *rest, S * C]`: innermost channels suit a CPU's convolutions best."""
    length = len(planes) - stack + 1
    if planes.dtype != torch.uint8 or planes.shape[2] > 1 or stack not in WORDS:
        return torch.cat([planes[index : index + length].movedim(2, -1) for index in range(stack)], -1)
    words = planes.squeeze(2).to(WORDS[stack])  # twice as fast as to copy single bytes
    stacked = words[:length].clone()
    for index in range(1, stack):
        stacked.add_(words[index : index + length], alpha=1 << 8 * index)
    return stacked.unsqueeze(-1).view(torch.uint8)  # the lowest byte is the first in memory


def to_float(obs: Tensor, dtype: torch.dtype) -> Tensor:
    """Raw observations in `dtype`; bytes are scaled to 0..1."""
    return obs.to(dtype).mul_(1 / 255) if obs.dtype == torch.uint8 else obs.to(dtype)
