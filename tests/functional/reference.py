"""ACER (arXiv 1611.01224) written out slowly in float64, one step, one column, one action at a time.

Episodes end by flags of their own here: `terminated` leaves no value behind, `truncated` leaves the value of the final
observation. Dummy steps are only left out of the averages; nothing else needs `mask`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from apex_acer.protocol.specification import Array


class Sizes(NamedTuple):
    length: int = 12
    columns: int = 7
    actions: int = 4


class Loss(NamedTuple):
    total: float
    d_pi_logits: Array  # [T+1, B, A]
    d_q_values: Array  # [T+1, B, A]
    td_error: Array  # [T, B]
    bound_share: float  # of the unmasked steps, those that the trust region changes


def random_batch(seed: int, sizes: Sizes | None = None, dtype: type[np.floating[Any]] = np.float64) -> dict[str, Array]:
    """Policies, values and episodes with every kind of ending, as one dict of arrays."""
    rng = np.random.default_rng(seed)
    t_max, b_max, a_max = sizes or Sizes()
    batch: dict[str, Array] = {
        "pi_logits": 2 * rng.normal(size=(t_max + 1, b_max, a_max)),
        "q_values": 3 * rng.normal(size=(t_max + 1, b_max, a_max)),
        "average_logits": 2 * rng.normal(size=(t_max, b_max, a_max)),
        "mu_log_probs": np.zeros((t_max, b_max, a_max)),
        "action": rng.integers(a_max, size=(t_max, b_max)),
        "reward": rng.normal(size=(t_max, b_max)),
        "terminated": np.zeros((t_max, b_max), bool),
        "truncated": np.zeros((t_max, b_max), bool),
        "mask": np.ones((t_max, b_max), bool),
        "importance": np.ones(b_max),
    }
    for b in range(b_max):
        reset_due = rng.random() < 0.3
        for t in range(t_max):
            batch["mu_log_probs"][t, b] = np.log(softmax(2 * rng.normal(size=a_max)))
            if reset_due:
                batch["mask"][t, b] = False
                batch["reward"][t, b] = 0
                reset_due = False
                continue
            ending = rng.choice(["none", "death", "time limit", "both", "life lost"], p=[0.6, 0.1, 0.14, 0.03, 0.13])
            batch["terminated"][t, b] = ending in ("death", "both", "life lost")
            batch["truncated"][t, b] = ending in ("time limit", "both")
            reset_due = ending in ("death", "time limit", "both")
    return {name: array.astype(dtype) if array.dtype == np.float64 else array for name, array in batch.items()}


def assert_near(actual: torch.Tensor, expected: Any, tolerance: float) -> None:
    expected = np.asarray(expected)
    largest = np.abs(expected).max()
    np.testing.assert_allclose(actual.detach().numpy(), expected, rtol=tolerance, atol=tolerance * largest)


def softmax(logits: Sequence[float] | Array) -> Array:
    largest = max(float(x) for x in logits)
    weights = [math.exp(float(x) - largest) for x in logits]
    return np.array([w / sum(weights) for w in weights])


def dot(x: Array, y: Array) -> float:
    return sum(float(a) * float(b) for a, b in zip(x, y, strict=True))


def importance_ratio(pi: Array, mu: Array, a: int) -> float:
    return float(pi[a]) / float(mu[a])


def retrace(
    q_taken: Array, value: Array, reward: Array, terminated: Array, truncated: Array, trace: Array, gamma: float
) -> Array:
    """Q_t + Σ_s γ^(s−t) (Π_{t<i≤s} trace_i) (r_s + γ V_{s+1} − Q_s), the sum ending with its episode.

    `value` is [T+1, B], everything else [T, B].
    """
    t_max, b_max = q_taken.shape
    q_ret = np.zeros((t_max, b_max))
    for b in range(b_max):
        for t in range(t_max):
            q_ret[t, b] = q_taken[t, b]
            weight = 1.0
            for s in range(t, t_max):
                if s > t:
                    weight *= gamma * float(trace[s, b])
                after = 0.0 if terminated[s, b] else gamma * float(value[s + 1, b])
                q_ret[t, b] += weight * (float(reward[s, b]) + after - float(q_taken[s, b]))
                if terminated[s, b] or truncated[s, b]:
                    break
    return q_ret


def policy_gradient(
    pi: Array, mu: Array, action: int, q: Array, q_ret: float, threshold: float, entropy_cost: float
) -> Array:
    """d/dπ of one step's objective: equation 9 of the paper, plus the entropy's −(1 + log π)."""
    value = dot(pi, q)
    gradient = np.zeros(len(pi))
    for a in range(len(pi)):
        rho = importance_ratio(pi, mu, a)
        if a == action:
            gradient[a] += min(threshold, rho) * (q_ret - value) / pi[a]
        if rho > threshold:
            expected_over_pi = pi[a] * (rho - threshold) / rho
            gradient[a] += expected_over_pi * (q[a] - value) / pi[a]
        gradient[a] -= entropy_cost * (1 + math.log(pi[a]))
    return gradient


def project(g: Array, k: Array, delta: float) -> Array:
    """The z nearest to g with k·z ≤ δ."""
    excess = dot(k, g) - delta
    if excess <= 0 or dot(k, k) == 0:
        return np.array(g, np.float64)
    return np.array([float(g[a]) - excess / dot(k, k) * float(k[a]) for a in range(len(g))])


def acer_loss(
    batch: dict[str, Array],
    *,
    gamma: float,
    truncation_threshold: float,
    trust_region_delta: float,
    entropy_cost: float,
    q_cost: float,
) -> Loss:
    """The loss of a `random_batch` and its derivatives."""
    action, mask = batch["action"], batch["mask"]
    t_max, b_max = action.shape
    pi = np.apply_along_axis(softmax, -1, batch["pi_logits"].astype(np.float64))
    average = np.apply_along_axis(softmax, -1, batch["average_logits"].astype(np.float64))
    mu = np.exp(batch["mu_log_probs"].astype(np.float64))
    q = batch["q_values"].astype(np.float64)

    value = np.array([[dot(pi[t, b], q[t, b]) for b in range(b_max)] for t in range(t_max + 1)])
    q_taken, trace = np.zeros((t_max, b_max)), np.zeros((t_max, b_max))
    for t in range(t_max):
        for b in range(b_max):
            q_taken[t, b] = q[t, b, action[t, b]]
            trace[t, b] = min(1.0, importance_ratio(pi[t, b], mu[t, b], action[t, b]))
    q_ret = retrace(q_taken, value, batch["reward"], batch["terminated"], batch["truncated"], trace, gamma)

    total, num_bound, count = 0.0, 0, max(1, int(mask.sum()))
    d_logits, d_q = np.zeros_like(pi), np.zeros_like(q)
    td_error = np.zeros((t_max, b_max))
    for t in range(t_max):
        for b in range(b_max):
            if not mask[t, b]:
                continue
            p, p_average, taken, weight = pi[t, b], average[t, b], action[t, b], float(batch["importance"][b]) / count
            gradient = policy_gradient(p, mu[t, b], taken, q[t, b], q_ret[t, b], truncation_threshold, entropy_cost)
            softmax_jacobian = np.diag(p) - np.outer(p, p)
            z = project(gradient, -p_average / p, trust_region_delta)
            error = q_ret[t, b] - q_taken[t, b]
            total += weight * (-dot(z, p) + q_cost * 0.5 * error**2)
            d_logits[t, b] = -weight * softmax_jacobian @ z
            d_q[t, b, taken] = -weight * q_cost * error
            td_error[t, b] = abs(error)
            num_bound += bool((z != gradient).any())
    return Loss(total, d_logits, d_q, td_error, num_bound / count)
