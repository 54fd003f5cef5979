"""Q-learning's parts: the dueling aggregation, n-step returns, the bootstrap and the rescaling of values."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

EPSILON = 1e-3  # of the rescaling: keeps its inverse Lipschitz


class NStep(NamedTuple):
    """The sum of discounted rewards up to a bootstrap, what that is discounted by, and how many steps lie before it."""

    reward: Tensor
    """`[...]`."""
    discount: Tensor
    """`[...]` gamma ^ `length`; zero where the last step terminated."""
    length: Tensor
    """`[...]` int64; 0 where the first step is masked."""


def dueling(value: Tensor, advantage: Tensor) -> Tensor:
    """Q(a) = V + A(a) − mean A (Wang et al. 2016, arXiv 1511.06581, equation 9).

    Args:
        value: `[..., 1]`.
        advantage: `[..., A]`.

    Returns:
        `[..., A]` in the dtype given.
    """
    return value + advantage - advantage.mean(-1, keepdim=True)


def n_step_return(*, reward: Tensor, terminated: Tensor, truncated: Tensor, mask: Tensor, gamma: float) -> NStep:
    """Σ γ^i r_i over the first steps of a window, up to its end or the episode's, whichever comes first.

    A step that is truncated is the last of an episode whose value goes on: it is bootstrapped from the observation after
    it. A window ends before its first masked step: what follows is another episode's, or no step at all.

    Args:
        reward: `[n, ...]`.
        terminated: `[n, ...]` bool.
        truncated: `[n, ...]` bool.
        mask: `[n, ...]` bool.
        gamma: discount per step.
    """
    goes_on = mask & ~terminated & ~truncated
    before = torch.cat([torch.ones_like(mask[:1]), goes_on[:-1]]).long().cumprod(0).bool()
    counted = before & mask  # [n, ...] the steps up to the bootstrap
    powers = gamma ** torch.arange(len(reward), dtype=reward.dtype, device=reward.device)
    total = torch.where(counted, powers.view(-1, *[1] * (reward.ndim - 1)) * reward, 0.0).sum(0)
    length = counted.sum(0)
    ends = (counted & terminated).any(0)
    return NStep(total, torch.where(ends, 0.0, gamma ** length.to(reward.dtype)), length)


def bootstrap_value(q_values: Tensor, target_q_values: Tensor) -> Tensor:
    """What the target network thinks of the action that maximises `q_values` (van Hasselt et al. 2016, arXiv 1509.06461).

    With the target network's own values for both it is plain Q-learning's maximum.

    Args:
        q_values: `[..., A]` that choose.
        target_q_values: `[..., A]` that judge.

    Returns:
        `[...]` in the dtype of `target_q_values`.
    """
    return target_q_values.gather(-1, q_values.argmax(-1, keepdim=True)).squeeze(-1)


def rescale(value: Tensor) -> Tensor:
    """h(x) = sign(x) (√(|x| + 1) − 1) + ε x (Pohlen et al. 2018, arXiv 1805.11593)."""
    return value.sign() * ((value.abs() + 1).sqrt() - 1) + EPSILON * value


def unscale(value: Tensor) -> Tensor:
    """The inverse of `rescale`, in closed form."""
    # (√(1 + 4ε(|x| + 1 + ε)) − 1) / 2ε without the difference of near numbers
    inner = value.abs() + 1 + EPSILON
    root = 2 * inner / ((1 + 4 * EPSILON * inner).sqrt() + 1)
    return value.sign() * (root.square() - 1)
