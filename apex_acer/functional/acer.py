"""ACER for discrete actions (arXiv 1611.01224): targets, the policy gradient and the gradient of the divergence."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from apex_acer.functional.masks import is_legal
from apex_acer.functional.means import masked_means
from apex_acer.functional.retrace import retrace

MAX_LOG_RHO = 30.0  # exp of it is finite in float32, and far above any threshold


class Targets(NamedTuple):
    """The quantities that the losses treat as constants; they have no gradient."""

    log_pi: Tensor
    """`[T, B, A]` log-probabilities of the current policy."""
    value: Tensor
    """`[T, B]` V = Σ π Q."""
    rho: Tensor
    """`[T, B]` π / μ of the actions taken."""
    q_ret: Tensor
    """`[T, B]` Retrace targets."""


def acer_targets(
    *,
    pi_logits: Tensor,
    q_values: Tensor,
    mu_log_probs: Tensor,
    action: Tensor,
    reward: Tensor,
    discount: Tensor,
    mask: Tensor,
) -> Targets:
    """Retrace targets with the trace min(1, ρ), and the quantities that they are computed from.

    Args:
        pi_logits: `[T+1, B, A]` logits of the current policy; the last row is only bootstrapped from.
        q_values: `[T+1, B, A]`.
        mu_log_probs: `[T, B, A]` log-probabilities of the behaviour policy.
        action: `[T, B]` int64, the actions taken.
        reward: `[T, B]` shaped rewards.
        discount: `[T, B]` gamma, or 0 on steps that terminated; the value after a time limit is bootstrapped.
        mask: `[T, B]` bool, false on dummy steps, which cut the trace.
    """
    taken = action.unsqueeze(-1)
    with torch.no_grad():
        log_pi = pi_logits.log_softmax(-1)  # [T+1, B, A]
        value = (log_pi.exp() * q_values).sum(-1)  # [T+1, B]
        log_rho = (log_pi[:-1] - mu_log_probs).gather(-1, taken).squeeze(-1).clamp(-MAX_LOG_RHO, MAX_LOG_RHO)
        rho = log_rho.exp()  # [T, B]
        q_ret = retrace(
            q_taken=q_values[:-1].gather(-1, taken).squeeze(-1),
            value=value[:-1],
            bootstrap_value=value[-1],
            reward=reward,
            discount=discount,
            trace=torch.where(mask, rho.clamp(max=1.0), 0.0),
        )
    return Targets(log_pi[:-1], value[:-1], rho, q_ret)


def acer_policy_gradient(
    *,
    pi_logits: Tensor,
    mu_log_probs: Tensor,
    action: Tensor,
    q_values: Tensor,
    q_ret: Tensor,
    truncation_threshold: float,
    entropy_cost: float,
) -> Tensor:
    """The gradient of the objective with respect to the policy's probabilities, before the trust region.

    g(a) = 1[a = a_t] · min(c, ρ_t) / π(a_t) · (Q_ret − V) + relu(1 − c / ρ(a)) · (Q(a) − V) − entropy_cost · (1 + log π(a))

    This is equation 9 with the truncation and bias correction of equation 7. Advantages, weights and the π in the bias term
    are constants. Ratios are computed from logarithms, so that no division overflows.

    Args:
        pi_logits: `[T, B, A]` logits of the current policy.
        mu_log_probs: `[T, B, A]` log-probabilities of the behaviour policy.
        action: `[T, B]` int64, the actions taken.
        q_values: `[T, B, A]`.
        q_ret: `[T, B]` Retrace targets.
        truncation_threshold: c ≥ 0; infinity gives plain importance sampling.
        entropy_cost: weight of the entropy.

    Returns:
        `[T, B, A]`, detached, in the dtype given; 0 for actions that are not legal, which the trust region must not see.
    """
    with torch.no_grad():
        log_pi = pi_logits.log_softmax(-1)  # [T, B, A]
        value = (log_pi.exp() * q_values).sum(-1)  # [T, B]
        taken = action.unsqueeze(-1)
        log_c = math.log(truncation_threshold) if truncation_threshold > 0 else -math.inf
        # min(c, ρ) / π = min(c / π, 1 / μ)
        log_weight = torch.minimum(log_c - log_pi.gather(-1, taken), -mu_log_probs.gather(-1, taken))
        truncated = log_weight.exp() * (q_ret - value).unsqueeze(-1)  # [T, B, 1]
        excess = torch.relu(1 - (log_c + mu_log_probs - log_pi).exp())  # relu(1 − c / ρ), [T, B, A]
        gradient = torch.addcmul(-entropy_cost * (1 + log_pi), excess, q_values - value.unsqueeze(-1))
        return gradient.scatter_add_(-1, taken, truncated).masked_fill_(~is_legal(log_pi), 0.0)


def kl_gradient(log_pi: Tensor, log_average: Tensor, delta: float) -> tuple[Tensor, Tensor]:
    """The gradient k = ∇_π KL(π_avg ‖ π) = −π_avg / π, and δ, `[T, B, A]` and `[T, B]`, both divided by the row's max |k|.

    k itself overflows for near-deterministic policies, so it is formed as −exp(log π_avg − log π − m), m the row's maximum.
    It is 0 for actions that are not legal, of which there is no probability to move.
    """
    log_k = (log_average - log_pi).masked_fill(~is_legal(log_pi), -math.inf)  # [T, B, A]
    log_scale = log_k.amax(-1, keepdim=True)
    return -(log_k - log_scale).exp(), delta * (-log_scale.squeeze(-1)).exp()


def acer_metrics(
    targets: Targets, log_average: Tensor, is_bound: Tensor, mask: Tensor, truncation_threshold: float
) -> dict[str, Tensor]:
    """The means over unmasked steps of ACER's metrics, by their names in `metrics.METRICS`.

    `log_average` `[T, B, A]` are the average policy's log-probabilities; `is_bound` `[T, B]` bool is true if the trust
    region changed the gradient; `mask` is `[T, B]` bool.
    """
    log_pi, value, rho, q_ret = targets
    samples = {
        "entropy": -(log_pi.exp() * log_pi).sum(-1),
        "average_policy_kl": (log_average.exp() * (log_average - log_pi)).sum(-1),
        "trust_region_share": is_bound,
        "truncated_share": rho > truncation_threshold,
        "rho": rho.clamp(max=max(truncation_threshold, 1.0)),
        "value": value,
        "q_ret": q_ret,
    }
    return masked_means(samples, mask)
