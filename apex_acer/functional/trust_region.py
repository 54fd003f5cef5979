"""The closed-form trust region of ACER, for any statistics that describe a policy."""

from __future__ import annotations

import torch
from torch import Tensor


def trust_region_projection(g: Tensor, k: Tensor, delta: float | Tensor) -> Tensor:
    """z* = g − max(0, (k·g − δ) / ‖k‖²) · k, per row: the nearest z to g with k·z ≤ δ.

    ACER (arXiv 1611.01224), equation 12. The result does not change if k and δ are divided by a common factor, so each row
    is divided by max |k| first, and ‖k‖² neither overflows nor underflows.

    Args:
        g: `[..., A]` gradient to follow.
        k: `[..., A]` gradient of the divergence; raises ValueError if its shape is another.
        delta: bound δ > 0; a number, or `[...]` per row.

    Returns:
        `[..., A]` in the dtype given; rows that are within the bound or whose k is zero are returned unchanged.
    """
    if g.shape != k.shape:
        raise ValueError(f"require g and k of one shape, got {list(g.shape)} and {list(k.shape)}")
    bound = torch.as_tensor(delta, dtype=g.dtype, device=g.device).expand(g.shape[:-1])
    scale = k.abs().amax(-1)  # [...]
    scale = torch.where(scale > 0, scale, 1.0)
    k_unit = k / scale.unsqueeze(-1)  # [..., A]
    norm = k_unit.square().sum(-1)
    excess = (k_unit * g).sum(-1) - bound / scale  # [...]
    step = torch.where((excess > 0) & (norm > 0), excess / norm, 0.0)
    return g - step.unsqueeze(-1) * k_unit


def surrogate_loss(statistics: Tensor, z: Tensor, importance: Tensor, mask: Tensor) -> Tensor:
    """A scalar loss whose gradient with respect to `statistics` is −z, as the mean over unmasked steps.

    Only its gradient has a meaning, its value has none. `statistics` of the policy, with gradient, and `z` are `[T, B, A]`,
    `mask` is `[T, B]` bool, and `importance` `[B]` is the weight of each column.
    """
    # torch.where and not a product with the mask, because z may be infinite on a masked step
    weighted = torch.where(mask.unsqueeze(-1), z * importance.unsqueeze(-1), 0.0)
    return -(weighted * statistics).sum() / mask.sum().clamp(min=1)
