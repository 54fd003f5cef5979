"""ACER for discrete actions (arXiv 1611.01224): Retrace targets, the policy gradient and the trust region."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from apex_acer.functional.distributions import MAX_LOG_RATIO, is_legal
from apex_acer.functional.means import masked_means
from apex_acer.functional.returns import backward_recursion


def retrace(
    *, q_taken: Tensor, value: Tensor, bootstrap_value: Tensor, reward: Tensor, discount: Tensor, trace: Tensor
) -> Tensor:
    """Q_ret_t = r_t + d_t · (V_{t+1} + c_{t+1} · (Q_ret_{t+1} − Q_{t+1})), without gradient.

    Munos et al. 2016 (arXiv 1606.02647), in the recursive form of ACER (arXiv 1611.01224), equation 5.

    Args:
        q_taken: `[T, B]` Q of the actions taken.
        value: `[T, B]` V = Σ π Q.
        bootstrap_value: `[B]` V of the observation after the last step.
        reward: `[T, B]`.
        discount: `[T, B]` gamma, or zero if the step terminated.
        trace: `[T, B]` min(1, ρ), or zero on an autoreset step, which cuts the trace. The first row is not used.

    Returns:
        `[T, B]` in the dtype given, sharing no storage with the arguments. Raises ValueError if a shape differs.
    """
    for name, tensor in (("value", value), ("reward", reward), ("discount", discount), ("trace", trace)):
        if tensor.shape != q_taken.shape:
            raise ValueError(f"{name}: require shape {list(q_taken.shape)} as q_taken, got {list(tensor.shape)}")
    if bootstrap_value.shape != q_taken.shape[1:]:
        raise ValueError(f"bootstrap_value: require {list(q_taken.shape[1:])}, got {list(bootstrap_value.shape)}")
    with torch.no_grad():
        # C_t = V_t + c_t (Q_ret_t − Q_t) is linear in the next one: C_t = offset_t + slope_t · C_{t+1}
        open_trace = trace > 0
        # torch.where and not a product, because an autoreset step may hold NaN
        offset = torch.where(open_trace, value + trace * (reward - q_taken), value)
        slope = torch.where(open_trace, trace * discount, 0.0)
        carried = backward_recursion(offset[1:], slope[1:], bootstrap_value)
        return reward + discount * carried


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
        mask: `[T, B]` bool, false on autoreset steps, which cut the trace.
    """
    taken = action.unsqueeze(-1)
    with torch.no_grad():
        log_pi = pi_logits.log_softmax(-1)  # [T+1, B, A]
        value = (log_pi.exp() * q_values).sum(-1)  # [T+1, B]
        log_rho = (log_pi[:-1] - mu_log_probs).gather(-1, taken).squeeze(-1).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
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
    """Gradient of the objective with respect to the policy's probabilities, before the trust region.

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
    """Gradient k = ∇_π KL(π_avg ‖ π) = −π_avg / π, and δ, `[T, B, A]` and `[T, B]`, both divided by the row's max |k|.

    k itself overflows for near-deterministic policies, so it is formed as −exp(log π_avg − log π − m), m the row's maximum.
    It is 0 for actions that are not legal, of which there is no probability to move.
    """
    log_k = (log_average - log_pi).masked_fill(~is_legal(log_pi), -math.inf)  # [T, B, A]
    log_scale = log_k.amax(-1, keepdim=True)
    return -(log_k - log_scale).exp(), delta * (-log_scale.squeeze(-1)).exp()


def acer_metrics(
    targets: Targets, log_average: Tensor, is_bound: Tensor, mask: Tensor, truncation_threshold: float
) -> dict[str, Tensor]:
    """Means over unmasked steps of ACER's metrics, by their names in `metrics.METRICS`.

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


def trust_region_projection(g: Tensor, k: Tensor, delta: float | Tensor) -> Tensor:
    """z* = g − max(0, (k·g − δ) / ‖k‖²) · k, per row: the nearest z to g with k·z ≤ δ.

    ACER (arXiv 1611.01224), equation 12. The result does not change if k and δ are divided by a common factor, so each row
    is divided by max |k| first, and ‖k‖² neither overflows nor underflows.

    Args:
        g: `[..., A]` gradient to follow.
        k: `[..., A]` gradient of the divergence; raises ValueError if its shape is another.
        delta: bound δ > 0; a number, or `[...]` per row.

    Returns:
        `[..., A]` in the dtype given; rows that are within the bound or whose k is zero are returned unchanged.
    """
    if g.shape != k.shape:
        raise ValueError(f"require g and k of one shape, got {list(g.shape)} and {list(k.shape)}")
    bound = torch.as_tensor(delta, dtype=g.dtype, device=g.device).expand(g.shape[:-1])
    scale = k.abs().amax(-1)  # [...]
    scale = torch.where(scale > 0, scale, 1.0)
    k_unit = k / scale.unsqueeze(-1)  # [..., A]
    norm = k_unit.square().sum(-1)
    excess = (k_unit * g).sum(-1) - bound / scale  # [...]
    step = torch.where((excess > 0) & (norm > 0), excess / norm, 0.0)
    return g - step.unsqueeze(-1) * k_unit


def surrogate_loss(statistics: Tensor, z: Tensor, importance: Tensor, mask: Tensor) -> Tensor:
    """A scalar loss whose gradient with respect to `statistics` is −z, as the mean over unmasked steps.

    Only its gradient has a meaning, its value has none. `statistics` of the policy, with gradient, and `z` are `[T, B, A]`,
    `mask` is `[T, B]` bool, and `importance` `[B]` is the weight of each column.
    """
    # torch.where and not a product with the mask, because z may be infinite on a masked step
    weighted = torch.where(mask.unsqueeze(-1), z * importance.unsqueeze(-1), 0.0)
    return -(weighted * statistics).sum() / mask.sum().clamp(min=1)
