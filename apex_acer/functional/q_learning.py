"""Q-learning: the dueling aggregation, n-step returns, bootstrap values, the rescaling of values, sequences' priorities."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

EPSILON = 1e-3  # of the rescaling; it makes the inverse Lipschitz
ETA = 0.9  # the share of the largest error in the priority of a sequence (Kapturowski et al. 2019)


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


def n_step_returns(
    *, reward: Tensor, terminated: Tensor, truncated: Tensor, mask: Tensor, gamma: float, n_steps: int
) -> NStep:
    """The `n_step_return` of the window that begins at each step of a sequence `[T, ...]`; it ends with the sequence."""
    indices = torch.arange(len(mask), device=mask.device) + torch.arange(n_steps, device=mask.device).unsqueeze(-1)
    inside, indices = indices < len(mask), indices.clamp(max=len(mask) - 1)  # [n, T]
    mask = mask[indices] & inside.view(*inside.shape, *[1] * (mask.ndim - 1))
    flags = {"terminated": terminated[indices], "truncated": truncated[indices], "mask": mask}
    return n_step_return(reward=reward[indices], **flags, gamma=gamma)


def n_step_target(*, reward: Tensor, discount: Tensor, bootstrap: Tensor, rescaled: bool) -> Tensor:
    """The target for Q of the first action: R + γ^m `bootstrap`, or h(R + γ^m h⁻¹(`bootstrap`)) if values are `rescaled`."""
    if not rescaled:
        return reward + discount * bootstrap
    return rescale(reward + discount * unscale(bootstrap))


def sequence_targets(ahead: NStep, value: Tensor, *, rescaled: bool) -> Tensor:
    """The `n_step_target` of each step of a sequence, `[T, B]`.

    `ahead` `[T, B]` are its `n_step_returns`, `value` `[T+1, B]` is bootstrapped from, that of step t + length for step t.
    """
    steps = torch.arange(len(ahead.length), device=value.device).unsqueeze(-1)
    bootstrap = value.gather(0, steps + ahead.length)
    return n_step_target(reward=ahead.reward, discount=ahead.discount, bootstrap=bootstrap, rescaled=rescaled)


def sequence_priority(td_error: Tensor, mask: Tensor) -> Tensor:
    """η max |δ| + (1 − η) mean |δ| over the unmasked steps of each sequence, `[B]`; 0 if it has none.

    `td_error` and `mask` are `[T, B]`. Kapturowski et al. 2019, section 2.3; η = 0.9.
    """
    error = torch.where(mask, td_error.abs(), 0.0)
    return ETA * error.amax(0) + (1 - ETA) * error.sum(0) / mask.sum(0).clamp(min=1)


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
