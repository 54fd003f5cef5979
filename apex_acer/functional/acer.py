"""ACER's policy gradient and its whole loss (arXiv 1611.01224), for discrete actions."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from apex_acer.functional.retrace import retrace
from apex_acer.functional.trust_region import trust_region_projection

MAX_LOG_RHO = 30.0  # exp of it is finite in every dtype, and far above any threshold


class AcerLoss(NamedTuple):
    """`total` carries the gradient; `metrics` are detached scalars; `td_error` is |Q_ret − Q|, `[T, B]`, 0 where masked."""

    total: Tensor
    metrics: dict[str, Tensor]
    td_error: Tensor


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
    """Gradient of the objective to maximise with respect to the probabilities, before the trust region.

    g(a) = 1[a = a_t] · min(c, ρ_t) / π(a_t) · (Q_ret − V) + relu(1 − c / ρ(a)) · (Q(a) − V) − entropy_cost · (1 + log π(a))

    Equation 9 with the truncation of equation 7 and its bias correction; advantages, weights and the bias term's own π are
    constants in it. Ratios are formed from logarithms, so that no division overflows.

    Args:
        pi_logits: `[T, B, A]` of the current policy.
        mu_log_probs: `[T, B, A]` of the behaviour policy.
        action: `[T, B]` int64, taken.
        q_values: `[T, B, A]`.
        q_ret: `[T, B]` Retrace targets.
        truncation_threshold: c ≥ 0; infinity gives plain importance sampling.
        entropy_cost: weight of the entropy.

    Returns:
        `[T, B, A]`, detached, in the dtype given.
    """
    with torch.no_grad():
        log_pi = pi_logits.log_softmax(-1)  # [T, B, A]
        value = (log_pi.exp() * q_values).sum(-1)  # [T, B]
        terms = log_pi, mu_log_probs, action.unsqueeze(-1), q_values, value, q_ret
        return _policy_gradient(*terms, truncation_threshold, entropy_cost)


def _policy_gradient(
    log_pi: Tensor,
    log_mu: Tensor,
    taken: Tensor,
    q_values: Tensor,
    value: Tensor,
    q_ret: Tensor,
    threshold: float,
    entropy_cost: float,
) -> Tensor:
    """`acer_policy_gradient` from what its caller has worked out already; `taken` is `[T, B, 1]`."""
    log_c = math.log(threshold) if threshold > 0 else -math.inf
    # min(c, ρ) / π = min(c / π, 1 / μ)
    log_weight = torch.minimum(log_c - log_pi.gather(-1, taken), -log_mu.gather(-1, taken))
    truncated = log_weight.exp() * (q_ret - value).unsqueeze(-1)  # [T, B, 1]
    excess = torch.relu(1 - (log_c + log_mu - log_pi).exp())  # relu(1 − c / ρ), [T, B, A]
    gradient = torch.addcmul(-entropy_cost * (1 + log_pi), excess, q_values - value.unsqueeze(-1))
    return gradient.scatter_add_(-1, taken, truncated)


def kl_gradient(log_pi: Tensor, log_average: Tensor, delta: float) -> tuple[Tensor, Tensor]:
    """The gradient k = ∇_π KL(π_avg ‖ π) = −π_avg / π, and δ, both divided by the largest entry of k's row.

    k itself overflows for near-deterministic policies, so it is formed as exp(log π_avg − log π − m), m the row's maximum.

    Returns:
        k `[T, B, A]` and δ `[T, B]`, as `trust_region_projection` takes them.
    """
    log_k = log_average - log_pi  # [T, B, A]
    log_scale = log_k.amax(-1, keepdim=True)
    return -(log_k - log_scale).exp(), delta * (-log_scale.squeeze(-1)).exp()


def acer_loss(
    *,
    pi_logits: Tensor,
    q_values: Tensor,
    average_logits: Tensor,
    mu_log_probs: Tensor,
    action: Tensor,
    reward: Tensor,
    terminated: Tensor,
    mask: Tensor,
    importance: Tensor,
    gamma: float,
    truncation_threshold: float,
    trust_region_delta: float,
    entropy_cost: float,
    q_cost: float,
) -> AcerLoss:
    """The loss to minimise, averaged over unmasked steps after the projection.

    Args:
        pi_logits: `[T+1, B, A]`, with gradient; the last row only bootstraps.
        q_values: `[T+1, B, A]`, with gradient.
        average_logits: `[T, B, A]` of the average policy.
        mu_log_probs: `[T, B, A]` of the behaviour policy.
        action: `[T, B]` int64.
        reward: `[T, B]`, as it is to be learned.
        terminated: `[T, B]` bool; truncation is not in it: the value after a time limit is bootstrapped.
        mask: `[T, B]` bool, false on dummy steps.
        importance: `[B]` weight of each column in the loss, for how replay was drawn.
        gamma: discount per step.
        truncation_threshold: c of the policy term.
        trust_region_delta: δ.
        entropy_cost: weight of the entropy, inside the trust region.
        q_cost: weight of ½ (Q_ret − Q)².

    Returns:
        The loss, its metrics (names of `metrics.METRICS`) and the absolute errors of Q.
    """
    taken = action.unsqueeze(-1)
    pi = pi_logits[:-1].softmax(-1)  # what z* is a gradient of
    q_taken = q_values[:-1].gather(-1, taken).squeeze(-1)  # [T, B]
    with torch.no_grad():
        log_pi_and_last = pi_logits.log_softmax(-1)  # [T+1, B, A]
        value_and_last = (log_pi_and_last.exp() * q_values).sum(-1)  # [T+1, B]
        log_pi, value = log_pi_and_last[:-1], value_and_last[:-1]
        log_rho = (log_pi - mu_log_probs).gather(-1, taken).squeeze(-1).clamp(-MAX_LOG_RHO, MAX_LOG_RHO)
        rho = log_rho.exp()  # [T, B]
        q_ret = retrace(
            q_taken=q_taken,
            value=value,
            bootstrap_value=value_and_last[-1],
            reward=reward,
            discount=torch.full_like(reward, gamma).masked_fill_(terminated, 0.0),
            trace=torch.where(mask, rho.clamp(max=1.0), 0.0),
        )
        gradient = _policy_gradient(
            log_pi, mu_log_probs, taken, q_values[:-1], value, q_ret, truncation_threshold, entropy_cost
        )
        log_average = average_logits.log_softmax(-1)
        k, delta = kl_gradient(log_pi, log_average, trust_region_delta)
        projected = trust_region_projection(gradient, k, delta)
        # where, not a product with the mask: an action that nobody would take has an infinite weight
        z = torch.where(mask.unsqueeze(-1), projected * importance.unsqueeze(-1), 0.0)
        num_steps = mask.sum().clamp(min=1)
    error = torch.where(mask, q_ret - q_taken, 0.0)
    # a surrogate whose gradient with respect to the probabilities is −z*
    policy_loss = -(z * pi).sum() / num_steps
    q_loss = 0.5 * (importance * error.square()).sum() / num_steps
    total = policy_loss + q_cost * q_loss
    with torch.no_grad():
        samples = {
            "entropy": -(log_pi.exp() * log_pi).sum(-1),
            "average_policy_kl": (log_average.exp() * (log_average - log_pi)).sum(-1),
            "trust_region_share": (projected != gradient).any(-1),
            "truncated_share": rho > truncation_threshold,
            "rho": rho.clamp(max=max(truncation_threshold, 1.0)),
            "value": value,
            "q_ret": q_ret,
        }
        dtype = rho.dtype
        table = torch.stack([sample.to(dtype) for sample in samples.values()])  # one mean for all of them
        means = torch.where(mask, table, 0.0).sum((1, 2)) / num_steps
        metrics = dict(zip(samples, means.unbind(), strict=True))
        metrics |= {"loss": total.detach(), "policy_loss": policy_loss.detach(), "q_loss": q_loss.detach()}
    return AcerLoss(total, metrics, error.detach().abs())
