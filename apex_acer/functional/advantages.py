"""Advantages of the actions taken and targets of the value, of steps in the order in which they were taken.

Environments reset in their next step: the row after a step that ended an episode is a dummy step, on which an environment
is reset. Its observation is the final one of the episode that ended, so a truncated step is bootstrapped from its value.
After a lost life, which terminates, the next row is a step like any other.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from apex_acer.functional.recursion import backward_recursion


class Advantages(NamedTuple):
    """The quantities that the losses treat as constants, both `[T, B]`; they have no gradient."""

    advantage: Tensor
    """0 on dummy steps."""
    value_target: Tensor
    """Targets for V; V itself on dummy steps."""


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
    """A_t = δ_t + γλ · A_{t+1}, δ_t = r_t + γ V_{t+1} − V_t, up to the episode's end, and A + V.

    Schulman et al. 2016 (arXiv 1506.02438), equation 16; with λ = 1 the targets are the returns.

    Args:
        reward: `[T, B]` shaped rewards.
        value: `[T+1, B]` V; the last row is only bootstrapped from.
        terminated: `[T, B]` bool; true also if a life was lost, if that is to end a return.
        truncated: `[T, B]` bool.
        mask: `[T, B]` bool, false on dummy steps.
        gamma: discount per step.
        gae_lambda: λ.

    Returns:
        In the dtype given. Raises ValueError if a shape differs.
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
    """v_t = V_t + min(ρ̄, ρ_t) δ_t + γ c_t (v_{t+1} − V_{t+1}), c_t = λ min(c̄, ρ_t), up to the episode's end.

    The advantage is min(ρ̄, ρ_t) (r_t + γ v_{t+1} − V_t); v_{t+1} is V_{t+1} if the episode or the segment ends at t.
    Espeholt et al. 2018 (arXiv 1802.01561), equation 1 and section 4.2. If every ρ is 1, the targets are those of GAE.

    Args:
        log_rho: `[T, B]` log π(a) − log μ(a) of the actions taken; of any size.
        reward: `[T, B]` shaped rewards.
        value: `[T+1, B]` V; the last row is only bootstrapped from.
        terminated: `[T, B]` bool; true also if a life was lost, if that is to end a return.
        truncated: `[T, B]` bool.
        mask: `[T, B]` bool, false on dummy steps.
        gamma: discount per step.
        gae_lambda: λ.
        rho_bar: finite ρ̄, the largest weight of a step, which decides whose value is learned.
        c_bar: finite c̄ ≤ ρ̄, the largest weight with which later steps count, which decides how fast it is learned.

    Returns:
        In the dtype given. Raises ValueError if a shape differs.
    """
    _require_shapes(value, log_rho=log_rho, reward=reward, terminated=terminated, truncated=truncated, mask=mask)
    with torch.no_grad():
        rho = torch.where(mask, log_rho, -torch.inf).exp()  # 0 on dummy steps
        weight, c = rho.clamp(max=rho_bar), gae_lambda * rho.clamp(max=c_bar)
        delta = weight * _td_error(reward, value, terminated, mask, gamma)
        discount = gamma * (~(terminated | truncated)).to(delta.dtype)
        correction = _sum_of_traces(delta, discount * c)  # v − V, [T, B]
        after = torch.cat([correction[1:], torch.zeros_like(correction[:1])])  # after the segment it is 0
        return Advantages(delta + weight * discount * after, correction + value[:-1])


def _td_error(reward: Tensor, value: Tensor, terminated: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """δ `[T, B]`, 0 on dummy steps, whatever they hold."""
    bootstrapped = torch.where(terminated, 0.0, gamma * value[1:])
    return torch.where(mask, reward + bootstrapped - value[:-1], 0.0)


def _sum_of_traces(delta: Tensor, trace: Tensor) -> Tensor:
    """x_t = delta_t + trace_t · x_{t+1}, `[T, B]`, with nothing after the last step."""
    return backward_recursion(delta[:-1], trace[:-1], delta[-1])


def _require_shapes(value: Tensor, **others: Tensor) -> None:
    shape = (len(value) - 1, *value.shape[1:])
    for name, tensor in others.items():
        if tensor.shape != shape:
            raise ValueError(f"{name}: require shape {list(shape)}, one row less than value, got {list(tensor.shape)}")
