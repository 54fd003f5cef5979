"""From raw observations to a network's input: frame stacks, unpacked parts, and floats in place of bytes."""

from __future__ import annotations

import torch
from torch import Tensor

from apex_acer.networks.images import first_image
from apex_acer.networks.speed import zero_where
from apex_acer.protocol.specification import EnvironmentSpec


def stack_planes(planes: Tensor, episode_step: Tensor, stack: int) -> Tensor:
    """Frame stacks `[L, N, S * plane[0], *plane[1:]]` from single planes `[S-1+L, N, *plane]`, oldest first.

    S is `stack`. `episode_step` `[S-1+L, N]` counts steps since the reset; planes before it are zero, as in ALE.
    """
    if stack == 1:
        return planes
    channels, length = planes.shape[2], len(planes) - stack + 1
    # channels are innermost in memory, which suits convolutions (`speed.put_channels_innermost`)
    parts = [planes[index : index + length].movedim(2, -1) for index in range(stack)]
    stacked = torch.cat(parts, -1)  # [L, N, *rest, S * C]
    newest = episode_step[stack - 1 :]  # [L, N]
    for index in range(stack - 1):
        before_episode = newest < stack - 1 - index
        zero_where(stacked[..., index * channels : (index + 1) * channels], before_episode)
    return stacked.movedim(-1, 2)


def shift_images(images: Tensor, offset: Tensor) -> Tensor:
    """Images `[B, C, H, W]` moved down and right by `offset` `[B, 2]` pixels, where edges repeat (DrQ, arXiv 2004.13649)."""
    rows, columns = (
        (torch.arange(size, device=images.device) - steps.unsqueeze(-1)).clamp(0, size - 1)  # [B, size]
        for size, steps in zip(images.shape[2:], offset.unbind(-1), strict=True)
    )
    index = rows.unsqueeze(-1) * images.shape[3] + columns.unsqueeze(1)  # [B, H, W]
    first = torch.arange(len(images), device=images.device).view(-1, 1, 1) * images.shape[2] * images.shape[3]
    pixels = images.movedim(1, -1)
    moved = pixels.reshape(-1, images.shape[1]).index_select(0, (first + index).flatten())
    return moved.view(pixels.shape).movedim(-1, 1)


def unpack(obs: Tensor, spec: EnvironmentSpec) -> dict[str, Tensor]:
    """The parts `[B, *obs_shape]` of packed observations `[B, S * num_bytes]` uint8, each of its own shape and type."""
    planes = obs.reshape(len(obs), spec.stack, spec.num_bytes)
    sizes = [box.num_bytes for box in spec.boxes.values()]
    # a copy begins at an address that suits its type, which a part in the middle of a row need not do
    rows = (row.clone(memory_format=torch.contiguous_format) for row in torch.split(planes, sizes, -1))
    pairs = zip(spec.boxes.items(), rows, strict=True)
    return {name: row.view(getattr(torch, box.dtype)).view(len(obs), *box.obs_shape) for (name, box), row in pairs}


def newest_images(obs: Tensor, spec: EnvironmentSpec) -> Tensor:
    """The newest image, the first if there are several, in each of raw observations `[L, B, *obs_shape]` with images.

    Returns `[L, B, C, H, W]` floats; bytes are scaled to 0..1.
    """
    name, box = first_image(spec)
    if name:
        obs = unpack(obs.flatten(0, 1), spec)[name].view(*obs.shape[:2], *box.obs_shape)
    newest = obs[:, :, -box.plane_shape[0] :]
    return newest if newest.is_floating_point() else to_float(newest, torch.float32)


def to_float(obs: Tensor, dtype: torch.dtype) -> Tensor:
    """Raw observations in `dtype`; bytes are scaled to 0..1."""
    return obs.to(dtype).mul_(1 / 255) if obs.dtype == torch.uint8 else obs.to(dtype)
