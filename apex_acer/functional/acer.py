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
    """Retrace targets Q_ret_t = r_t + d_t · (V_{t+1} + c_{t+1} · (Q_ret_{t+1} − Q_{t+1})), `[T, B]`, without gradient.

    Munos et al. 2016 (arXiv 1606.02647), in the recursive form of ACER (arXiv 1611.01224), equation 5. All arguments are
    `[T, B]`, but `bootstrap_value` `[B]`, V of the observation after the last step. `discount` is γ, or 0 on steps that
    terminated; `trace` is min(1, ρ), or 0 on autoreset steps, and its first row is not used. Raises ValueError if a shape
    differs.
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
    """Constants of ACER's losses, without gradient."""

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

    `pi_logits` and `q_values` are `[T+1, B, A]`, and their last row is only bootstrapped from; the behaviour policy's
    `mu_log_probs` are `[T, B, A]`. The others are `[T, B]`: `discount` is γ, or 0 on steps that terminated, and `mask` is
    false on autoreset steps, which cut the trace.
    """
    index = action.unsqueeze(-1)
    with torch.no_grad():
        log_pi = pi_logits.log_softmax(-1)  # [T+1, B, A]
        value = (log_pi.exp() * q_values).sum(-1)  # [T+1, B]
        log_rho = (log_pi[:-1] - mu_log_probs).gather(-1, index).squeeze(-1).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        rho = log_rho.exp()  # [T, B]
        q_ret = retrace(
            q_taken=q_values[:-1].gather(-1, index).squeeze(-1),
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
    """Gradient of ACER's objective with respect to the policy's probabilities, before the trust region, `[T, B, A]`.

    g(a) = 1[a = a_t] · min(c, ρ_t) / π(a_t) · (Q_ret − V) + relu(1 − c / ρ(a)) · (Q(a) − V) − entropy_cost · (1 + log π(a))

    This is equation 9 with the truncation and bias correction of equation 7, without gradient; illegal actions have 0.
    Ratios are computed from logarithms, so that no division overflows. `pi_logits` of the current policy, `mu_log_probs` of
    the behaviour policy and `q_values` are `[T, B, A]`; `action` and `q_ret` are `[T, B]`. c ≥ 0 is the
    `truncation_threshold`; infinity gives plain importance sampling.
    """
    with torch.no_grad():
        log_pi = pi_logits.log_softmax(-1)  # [T, B, A]
        value = (log_pi.exp() * q_values).sum(-1)  # [T, B]
        index = action.unsqueeze(-1)
        log_c = math.log(truncation_threshold) if truncation_threshold > 0 else -math.inf
        # min(c, ρ) / π = min(c / π, 1 / μ)
        log_weight = torch.minimum(log_c - log_pi.gather(-1, index), -mu_log_probs.gather(-1, index))
        truncated = log_weight.exp() * (q_ret - value).unsqueeze(-1)  # [T, B, 1]
        excess = torch.relu(1 - (log_c + mu_log_probs - log_pi).exp())  # relu(1 − c / ρ), [T, B, A]
        gradient = torch.addcmul(-entropy_cost * (1 + log_pi), excess, q_values - value.unsqueeze(-1))
        return gradient.scatter_add_(-1, index, truncated).masked_fill_(~is_legal(log_pi), 0.0)


def kl_gradient(log_pi: Tensor, log_average: Tensor, delta: float) -> tuple[Tensor, Tensor]:
    """Gradient k = ∇_π KL(π_avg ‖ π) = −π_avg / π, and δ, `[T, B, A]` and `[T, B]`, both divided by the row's max |k|.

    k itself overflows for near-deterministic policies. It is 0 for illegal actions.
    """
    log_k = (log_average - log_pi).masked_fill(~is_legal(log_pi), -math.inf)  # [T, B, A]
    log_scale = log_k.amax(-1, keepdim=True)
    return -(log_k - log_scale).exp(), delta * (-log_scale.squeeze(-1)).exp()


def acer_metrics(
    targets: Targets, log_average: Tensor, is_bound: Tensor, mask: Tensor, truncation_threshold: float
) -> dict[str, Tensor]:
    """ACER's metrics by name, means over unmasked steps.

    `log_average` `[T, B, A]` are the average policy's log-probabilities; `is_bound` `[T, B]` is true if the trust region
    changed the gradient.
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
    """ACER's trust region: z* = g − max(0, (k·g − δ) / ‖k‖²) · k, per row, the nearest z to g with k·z ≤ δ.

    ACER (arXiv 1611.01224), equation 12. Each row is divided by max |k|, which changes nothing but overflows. The gradient
    `g` and the divergence's gradient `k` are `[..., A]`, else ValueError; the bound `delta` > 0 is a number, or `[...]` per
    row. Rows within the bound, or whose k is 0, are returned unchanged.
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
    """A scalar whose gradient with respect to the policy's `statistics` `[T, B, A]` is −z, the mean over unmasked steps.

    Its value has no meaning. `importance` `[B]` is the weight of each sequence.
    """
    # torch.where and not a product with the mask, because z may be infinite on a masked step
    weighted = torch.where(mask.unsqueeze(-1), z * importance.unsqueeze(-1), 0.0)
    return -(weighted * statistics).sum() / mask.sum().clamp(min=1)
