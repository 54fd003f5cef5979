"""Q-learning: the dueling aggregation, n-step returns, bootstrap values and the rescaling of values."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

EPSILON = 1e-3  # of the rescaling; it makes the inverse Lipschitz


class NStep(NamedTuple):
    """An n-step return: rewards, and the discount of the value that is bootstrapped."""

    reward: Tensor
    """`[...]` sum of discounted rewards."""
    discount: Tensor
    """`[...]` gamma ^ `length`; zero if the last step terminated."""
    length: Tensor
    """`[...]` int64, the number of steps before the bootstrap; 0 if the first step is masked."""


def dueling(value: Tensor, advantage: Tensor) -> Tensor:
    """Q(a) = V + A(a) − mean A, `[..., A]`, of `value` `[..., 1]` and `advantage` `[..., A]`.

    Wang et al. 2016 (arXiv 1511.06581), equation 9.
    """
    return value + advantage - advantage.mean(-1, keepdim=True)


def n_step_return(*, reward: Tensor, terminated: Tensor, truncated: Tensor, mask: Tensor, gamma: float) -> NStep:
    """Σ γ^i r_i over the steps of a window, up to the window's or the episode's end, whichever comes first.

    After a truncated step the return is bootstrapped from the next observation. A window ends before its first masked step,
    because what follows belongs to another episode or is no step at all.

    All tensors are `[n, ...]`, n the steps of a window; all but `reward` are bool. `gamma` is the discount per step.
    """
    continues = mask & ~terminated & ~truncated
    before = torch.cat([torch.ones_like(mask[:1]), continues[:-1]]).long().cumprod(0).bool()
    counted = before & mask  # [n, ...] the steps up to the bootstrap
    powers = gamma ** torch.arange(len(reward), dtype=reward.dtype, device=reward.device)
    total = torch.where(counted, powers.view(-1, *[1] * (reward.ndim - 1)) * reward, 0.0).sum(0)
    length = counted.sum(0)
    ends = (counted & terminated).any(0)
    return NStep(total, torch.where(ends, 0.0, gamma ** length.to(reward.dtype)), length)


def bootstrap_value(q_values: Tensor, target_q_values: Tensor) -> Tensor:
    """The target network's values `[...]` of the actions that maximise `q_values`; both arguments are `[..., A]`.

    Double Q-learning (van Hasselt et al. 2016, arXiv 1509.06461); with `target_q_values` for both, plain Q-learning.
    """
    return target_q_values.gather(-1, q_values.argmax(-1, keepdim=True)).squeeze(-1)


def rescale(value: Tensor) -> Tensor:
    """h(x) = sign(x) (√(|x| + 1) − 1) + ε x (Pohlen et al. 2018, arXiv 1805.11593)."""
    return value.sign() * ((value.abs() + 1).sqrt() - 1) + EPSILON * value


def unscale(value: Tensor) -> Tensor:
    """The inverse of `rescale`, in closed form."""
    # (√(1 + 4ε(|x| + 1 + ε)) − 1) / 2ε, without subtracting nearly equal numbers
    inner = value.abs() + 1 + EPSILON
    root = 2 * inner / ((1 + 4 * EPSILON * inner).sqrt() + 1)
    return value.sign() * (root.square() - 1)
