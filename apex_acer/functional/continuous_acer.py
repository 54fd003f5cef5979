"""ACER for continuous actions (arXiv 1611.01224, section 5 and appendix): dueling, targets, the policy gradient."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from apex_acer.functional.acer import retrace
from apex_acer.functional.distributions import MAX_LOG_RATIO, Gaussian
from apex_acer.functional.means import masked_means


class ContinuousTargets(NamedTuple):
    """Constants of continuous ACER's losses, all `[T, B]`, without gradient."""

    rho: Tensor
    """f / μ of the actions taken."""
    q_ret: Tensor
    """Retrace targets, for Q̃."""
    q_opc: Tensor
    """Targets of off-policy correction with the trace 1, for the policy."""
    value_target: Tensor
    """Targets for V."""


def sample_actions(policy: Gaussian, noise: Tensor) -> Tensor:
    """Actions `[n, ..., d]` of `policy` from standard normal `noise`, without gradient."""
    return (policy.mean + policy.log_std.exp() * noise).detach()


def stochastic_dueling(value: Tensor, advantage: Tensor, other_advantages: Tensor) -> Tensor:
    """Q̃(a) = V + A(a) − (1/n) Σ A(u_i), `[...]`, equation 13; `other_advantages` `[n, ...]` are A(u_i), u_i ~ π."""
    return value + advantage - other_advantages.mean(0)


def log_ratio(action: Tensor, policy: Gaussian, behaviour: Gaussian) -> Tensor:
    """Log ρ = log f(a) − log μ(a) `[...]` of `action` `[..., d]`, clipped so that ρ is finite; without gradient."""
    with torch.no_grad():
        log_rho = policy.log_prob(action) - behaviour.log_prob(action)
        # far below zero nothing is cut, because the trace is ρ to the power of 1/d
        return log_rho.clamp(torch.finfo(log_rho.dtype).min, MAX_LOG_RATIO)


def continuous_acer_targets(
    *,
    log_rho: Tensor,
    q_taken: Tensor,
    value: Tensor,
    reward: Tensor,
    discount: Tensor,
    mask: Tensor,
    action_dim: int,
) -> ContinuousTargets:
    """Q_ret with the trace min(1, ρ^(1/d)), Q^opc with the trace 1, and min(1, ρ) (Q_ret − Q̃) + V, equation 14.

    `value` `[T+1, B]` is V, whose last row is only bootstrapped from. The others are `[T, B]`: `log_rho` and `q_taken` Q̃ of
    the actions taken, `reward`, `discount`, which is 0 on steps that terminated, and `mask`, which is false on autoreset
    steps, which cut both traces. `action_dim` is d.
    """
    with torch.no_grad():
        log_trace = log_rho.clamp(max=0.0) / action_dim
        q_ret, q_opc = (
            retrace(
                q_taken=q_taken,
                value=value[:-1],
                bootstrap_value=value[-1],
                reward=reward,
                discount=discount,
                trace=trace,
            )
            for trace in (torch.where(mask, log_trace.exp(), 0.0), mask.to(reward.dtype))
        )
        rho = log_rho.exp()
        value_target = rho.clamp(max=1.0) * (q_ret - q_taken) + value[:-1]
    return ContinuousTargets(rho, q_ret, q_opc, value_target)


def continuous_acer_policy_gradient(
    *,
    policy: Gaussian,
    behaviour: Gaussian,
    action: Tensor,
    other_action: Tensor,
    q_opc: Tensor,
    q_other: Tensor,
    value: Tensor,
    truncation_threshold: float,
) -> Tensor:
    """Gradient of the objective with respect to the policy's mean, before the trust region, `[T, B, d]`, detached.

    g = min(c, ρ(a)) (Q^opc − V) ∇ log f(a) + relu(1 − c / ρ(a′)) (Q̃(a′) − V) ∇ log f(a′)

    `policy` f and `behaviour` μ are `[T, B, d]`, as are `action` a, which μ sampled, and `other_action` a′, which f sampled.
    `q_opc`, `q_other` Q̃(a′) and `value` V are `[T, B]`. c ≥ 0 is the `truncation_threshold`; infinity gives plain importance
    sampling. Ratios are computed from logarithms, so that no division overflows.
    """
    with torch.no_grad():
        log_c = math.log(truncation_threshold) if truncation_threshold > 0 else -math.inf
        weight = log_ratio(action, policy, behaviour).clamp(max=log_c).exp()  # min(c, ρ), [T, B]
        excess = torch.relu(1 - (log_c - log_ratio(other_action, policy, behaviour)).exp())  # [T, B]
        truncated = (weight * (q_opc - value)).unsqueeze(-1) * _score(action, policy)
        correction = (excess * (q_other - value)).unsqueeze(-1) * _score(other_action, policy)
        return truncated + correction


def _score(action: Tensor, policy: Gaussian) -> Tensor:
    """∇ log f(a) with respect to the mean, `[..., d]`."""
    return (action - policy.mean) * (-2 * policy.log_std).exp()


def mean_kl_gradient(policy: Gaussian, average: Gaussian) -> Tensor:
    """Gradient k of KL(f_avg ‖ f) with respect to the mean of f, `[..., d]`, detached."""
    return ((policy.mean - average.mean) * (-2 * policy.log_std).exp()).detach()


def continuous_acer_metrics(
    targets: ContinuousTargets,
    *,
    policy: Gaussian,
    average: Gaussian,
    value: Tensor,
    is_bound: Tensor,
    mask: Tensor,
    truncation_threshold: float,
) -> dict[str, Tensor]:
    """Continuous ACER's metrics by name, means over unmasked steps.

    `value` is `[T, B]`; `is_bound` `[T, B]` is true if the trust region changed the gradient.
    """
    samples = {
        "average_policy_kl": average.kl(policy),
        "trust_region_share": is_bound,
        "truncated_share": targets.rho > truncation_threshold,
        "rho": targets.rho.clamp(max=max(truncation_threshold, 1.0)),
        "value": value,
        "q_ret": targets.q_ret,
        "q_opc": targets.q_opc,
        "action_std": policy.log_std.exp().mean(-1).expand_as(value),
    }
    return masked_means(samples, mask)
