"""Means over the steps that count: of metrics, and of losses."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def masked_means(samples: Mapping[str, Tensor], mask: Tensor) -> dict[str, Tensor]:
    """The mean of each of `samples` where `mask` is true, without gradient; 0 where it is nowhere true.

    Args:
        samples: by name, `[...]` each, of any type.
        mask: `[...]` bool.

    Returns:
        Scalars by name, in the type of the first sample.
    """
    with torch.no_grad():
        dtype = next(iter(samples.values())).dtype
        table = torch.stack([sample.to(dtype) for sample in samples.values()])  # one mean for all of them
        means = torch.where(mask, table, 0.0).flatten(1).sum(1) / mask.sum().clamp(min=1)
    return dict(zip(samples, means.unbind(), strict=True))


def squared_error_loss(value: Tensor, target: Tensor, importance: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """½ (target − value)², as the mean over unmasked steps, and the errors.

    Args:
        value: `[T, B]`, with gradient.
        target: `[T, B]`, without.
        importance: `[B]` weight of each column, for how replay was drawn.
        mask: `[T, B]` bool, false on dummy steps.

    Returns:
        A scalar; target − value `[T, B]`, detached, 0 where masked.
    """
    error = torch.where(mask, target - value, 0.0)
    return 0.5 * (importance * error.square()).sum() / mask.sum().clamp(min=1), error.detach()
