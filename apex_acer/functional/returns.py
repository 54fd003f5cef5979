"""Returns and advantages of consecutive steps: n-step returns, GAE and V-trace.

The row after a step that ended an episode is an autoreset step, which is masked. Its observation is the final one of that
episode, so a truncated step is bootstrapped from its value. After a lost life, which terminates, the next row is a step.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


def shape_rewards(reward: Tensor, terminated: Tensor, *, clip: float, penalty: float) -> Tensor:
    """`reward` `[...]` clipped to ± `clip` (0: not clipped), less `penalty` on the steps that `terminated` `[...]`."""
    clipped = reward.clamp(-clip, clip) if clip else reward
    return clipped - penalty * terminated.to(reward.dtype) if penalty else clipped


class NStep(NamedTuple):
    """An n-step return without its bootstrap."""

    reward: Tensor
    """`[...]` Σ γ^i r_i."""
    discount: Tensor
    """`[...]` γ^`length`, the factor of the bootstrapped value; 0 if the last step terminated."""
    length: Tensor
    """`[...]` int64, the number of steps before the bootstrap; 0 if the first step is masked."""


def n_step_return(*, reward: Tensor, terminated: Tensor, truncated: Tensor, mask: Tensor, gamma: float) -> NStep:
    """The return of the first of n consecutive steps, up to the episode's end or before the first masked step.

    All tensors are `[n, ...]`; all but `reward` are bool. `gamma` is the discount per step.
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
    """The `n_step_return` from each step of a sequence `[T, ...]`; it ends with the sequence."""
    indices = torch.arange(len(mask), device=mask.device) + torch.arange(n_steps, device=mask.device).unsqueeze(-1)
    inside, indices = indices < len(mask), indices.clamp(max=len(mask) - 1)  # [n, T]
    mask = mask[indices] & inside.view(*inside.shape, *[1] * (mask.ndim - 1))
    flags = {"terminated": terminated[indices], "truncated": truncated[indices], "mask": mask}
    return n_step_return(reward=reward[indices], **flags, gamma=gamma)


class Advantages(NamedTuple):
    """Advantages and targets of V, `[T, B]`, without gradient."""

    advantage: Tensor
    """0 on masked steps."""
    value_target: Tensor
    """V itself on masked steps."""


def gae(
    *,
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    mask: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Advantages:
    """Generalised advantages A_t = δ_t + γλ · A_{t+1}, δ_t = r_t + γ V_{t+1} − V_t, up to the episode's end, and A + V.

    Schulman et al. 2016 (arXiv 1506.02438), equation 16; with λ = 1 the targets are the returns. `value` is `[T+1, B]`, and
    its last row is only bootstrapped from; the others are `[T, B]`. A lost life may count as `terminated`; `mask` is false
    on autoreset steps. Raises ValueError if a shape differs.
    """
    _require_shapes(value, reward=reward, terminated=terminated, truncated=truncated, mask=mask)
    with torch.no_grad():
        delta = _td_error(reward, value, terminated, mask, gamma)
        continues = mask & ~(terminated | truncated)
        advantage = _sum_of_traces(delta, gamma * gae_lambda * continues.to(delta.dtype))
        return Advantages(advantage, advantage + value[:-1])


def vtrace(
    *,
    log_rho: Tensor,
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    mask: Tensor,
    gamma: float,
    gae_lambda: float,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
) -> Advantages:
    """V-trace targets v_t = V_t + min(ρ̄, ρ_t) δ_t + γ c_t (v_{t+1} − V_{t+1}), c_t = λ min(c̄, ρ_t), up to the episode's end.

    The advantage is min(ρ̄, ρ_t) (r_t + γ v_{t+1} − V_t); v_{t+1} is V_{t+1} if the episode or the sequence ends at t.
    Espeholt et al. 2018 (arXiv 1802.01561), equation 1 and section 4.2. If every ρ is 1, the targets are those of GAE.
    Arguments are as in `gae`, and `log_rho` `[T, B]` is log π(a) − log μ(a), of any size. The largest weights ρ̄ and c̄ ≤ ρ̄
    are finite: ρ̄ decides whose value is learned, c̄ how fast. Raises ValueError if a shape differs.
    """
    _require_shapes(value, log_rho=log_rho, reward=reward, terminated=terminated, truncated=truncated, mask=mask)
    with torch.no_grad():
        rho = torch.where(mask, log_rho, -torch.inf).exp()  # 0 on masked steps
        weight, c = rho.clamp(max=rho_bar), gae_lambda * rho.clamp(max=c_bar)
        delta = weight * _td_error(reward, value, terminated, mask, gamma)
        discount = gamma * (~(terminated | truncated)).to(delta.dtype)
        correction = _sum_of_traces(delta, discount * c)  # v − V, [T, B]
        after = torch.cat([correction[1:], torch.zeros_like(correction[:1])])  # after the sequence it is 0
        return Advantages(delta + weight * discount * after, correction + value[:-1])


def _td_error(reward: Tensor, value: Tensor, terminated: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """δ `[T, B]`, 0 on masked steps."""
    bootstrapped = torch.where(terminated, 0.0, gamma * value[1:])
    return torch.where(mask, reward + bootstrapped - value[:-1], 0.0)


def _sum_of_traces(delta: Tensor, trace: Tensor) -> Tensor:
    """x_t = delta_t + trace_t · x_{t+1}, `[T, B]`, with 0 after the last step."""
    return backward_recursion(delta[:-1], trace[:-1], delta[-1])


def _require_shapes(value: Tensor, **others: Tensor) -> None:
    shape = (len(value) - 1, *value.shape[1:])
    for name, tensor in others.items():
        if tensor.shape != shape:
            raise ValueError(f"{name}: require shape {list(shape)}, one row less than value, got {list(tensor.shape)}")


def backward_recursion(offset: Tensor, slope: Tensor, last: Tensor) -> Tensor:
    """x_t = offset_t + slope_t · x_{t+1}, `[T, B]`, before x_T = `last` `[B]`; the recursion of Retrace, GAE and V-trace.

    `offset` and `slope` are `[T−1, B]`; a slope of 0 passes on neither infinity nor NaN. It is a parallel scan by doubling
    (Hillis and Steele 1986): log2(T) rounds of a few large operations.
    """
    x = torch.cat([offset, last.unsqueeze(0)])  # [T, B]
    slope = torch.cat([slope, torch.zeros_like(last).unsqueeze(0)])
    reach = 1
    while reach < len(x):
        near, beyond = slope[:-reach], x[reach:]
        composed = torch.where(near != 0, torch.addcmul(x[:-reach], near, beyond), x[:-reach])
        x = torch.cat([composed, x[-reach:]])
        slope = torch.cat([near * slope[reach:], slope[-reach:]])
        reach *= 2
    return x
