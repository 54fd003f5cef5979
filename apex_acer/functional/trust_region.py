"""The closed-form trust region of ACER, on whatever statistics describe a policy."""

from __future__ import annotations

import torch
from torch import Tensor


def trust_region_projection(g: Tensor, k: Tensor, delta: float | Tensor) -> Tensor:
    """z* = g − max(0, (k·g − δ) / ‖k‖²) · k, per row: the nearest z to g with k·z ≤ δ.

    ACER (arXiv 1611.01224), equation 12. The answer depends on k and δ only up to a common factor, so each row is divided
    by max |k| first: ‖k‖² neither overflows nor underflows, however large the row.

    Args:
        g: `[..., A]` gradient to follow.
        k: `[..., A]` gradient of the divergence.
        delta: bound δ > 0; a number, or `[...]` per row.

    Returns:
        `[..., A]` in the dtype given; rows whose k is zero or that are within the bound come back as they were.

    Raises:
        ValueError: where g and k differ in shape.
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
    """A loss whose gradient with respect to `statistics` is −z*, as the mean over unmasked steps.

    Args:
        statistics: `[T, B, A]` of the policy, with gradient.
        z: `[T, B, A]` the gradient to follow.
        importance: `[B]` weight of each column, for how replay was drawn.
        mask: `[T, B]` bool, false on dummy steps.

    Returns:
        A scalar; its value has no meaning, its gradient has.
    """
    # where, not a product with the mask: an action that nobody would take has an infinite weight
    weighted = torch.where(mask.unsqueeze(-1), z * importance.unsqueeze(-1), 0.0)
    return -(weighted * statistics).sum() / mask.sum().clamp(min=1)
