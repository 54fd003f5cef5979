"""Means over unmasked steps, of metrics and of losses."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def masked_means(samples: Mapping[str, Tensor], mask: Tensor) -> dict[str, Tensor]:
    """Scalar means by name of `samples` `[...]` where `mask` `[...]` is true, without gradient; 0 if it is true nowhere.

    They have the type of the first tensor.
    """
    with torch.no_grad():
        dtype = next(iter(samples.values())).dtype
        table = torch.stack([sample.to(dtype) for sample in samples.values()])  # so that one operation takes all means
        means = torch.where(mask, table, 0.0).flatten(1).sum(1) / mask.sum().clamp(min=1)
    return dict(zip(samples, means.unbind(), strict=True))


def masked_mean(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Mean of `values` `[...]` where `mask` `[...]` is true, over `dim` or all; with gradient, 0 if it is true nowhere."""
    return torch.where(mask, values, 0.0).sum(dim) / mask.sum(dim).clamp(min=1)


def squared_error_loss(value: Tensor, target: Tensor, importance: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of ½ (target − value)² over unmasked steps, and target − value, detached and 0 where masked.

    All are `[T, B]`, except `importance` `[B]`, the weight of each sequence. If `value` has another dimension before these,
    such as one of several critics, the loss is summed over it.
    """
    error = torch.where(mask, target - value, 0.0)
    return 0.5 * (importance * error.square()).sum() / mask.sum().clamp(min=1), error.detach()
