"""Action masks: logits and values of choices that are not legal are so low that they are never taken."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from apex_acer.functional.branches import joint_logits

ILLEGAL = (
    -1e9
)  # finite, because 0 · ∞ is no number; its exponential is exactly 0, also after a temperature of a million


def forbid(scores: Tensor, legal: Tensor) -> Tensor:
    """`scores` `[..., A]`, logits or values, with `ILLEGAL` in place of those that are not `legal` `[..., A]` bool."""
    return scores.masked_fill(~legal, ILLEGAL)


def is_legal(scores: Tensor) -> Tensor:
    """`[..., A]` bool: which of the `scores`, also as log-probabilities, `forbid` has left as they were."""
    return scores > ILLEGAL / 2


def legal_combinations(legal: Tensor, sizes: Sequence[int]) -> Tensor:
    """`[..., Π sizes]` bool: the combinations that consist of `legal` choices `[..., Σ sizes]` of each branch only."""
    return is_legal(joint_logits(forbid(torch.zeros_like(legal, dtype=torch.float32), legal), sizes))


def random_legal(scores: Tensor, uniform: Tensor) -> Tensor:
    """Which one `uniform` `[...]` from [0, 1) draws of the legal ones of `scores` `[..., A]`, each with the same chance."""
    legal = is_legal(scores)
    rank = (uniform * legal.sum(-1)).long().unsqueeze(-1)  # how many legal ones come before it
    return (legal.cumsum(-1) > rank).int().argmax(-1)
