"""Distributions, GAE, V-trace and PPO's losses in float64, one step, one column, one action at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from apex_acer.protocol.specification import Array


def entropy(probs: Sequence[float]) -> float:
    return -sum(p * math.log(p) for p in probs if p > 0)


def kl(probs: Sequence[float], others: Sequence[float]) -> float:
    if any(p > 0 and q == 0 for p, q in zip(probs, others, strict=True)):
        return math.inf
    return sum(p * math.log(p / q) for p, q in zip(probs, others, strict=True) if p > 0)


def gaussian_entropy(log_std: Array) -> float:
    return sum(0.5 * math.log(2 * math.pi * math.e * math.exp(s) ** 2) for s in log_std)


def td_error(batch: dict[str, Array], t: int, b: int, gamma: float) -> float:
    after = 0.0 if batch["terminated"][t, b] else gamma * float(batch["value"][t + 1, b])
    return float(batch["reward"][t, b]) + after - float(batch["value"][t, b])


def steps_from(batch: dict[str, Array], t: int, b: int) -> list[int]:
    """The steps from t up to the end of its episode or of the segment; none from a dummy step."""
    steps = []
    for s in range(t, len(batch["reward"])):
        if not batch["mask"][s, b]:
            break
        steps.append(s)
        if batch["terminated"][s, b] or batch["truncated"][s, b]:
            break
    return steps


def gae(batch: dict[str, Array], gamma: float, gae_lambda: float) -> tuple[Array, Array]:
    """Σ_s (γλ)^(s−t) δ_s over the steps of the episode, and that plus V."""
    advantage, value_target = np.zeros((2, *batch["reward"].shape))
    for t, b in np.ndindex(advantage.shape):
        for s in steps_from(batch, t, b):
            advantage[t, b] += (gamma * gae_lambda) ** (s - t) * td_error(batch, s, b, gamma)
        value_target[t, b] = advantage[t, b] + float(batch["value"][t, b])
    return advantage, value_target


def vtrace_target(
    batch: dict[str, Array], t: int, b: int, gamma: float, gae_lambda: float, rho_bar: float, c_bar: float
) -> float:
    """V_t + Σ_s γ^(s−t) (Π_{t≤i<s} c_i) min(ρ̄, ρ_s) δ_s, equation 1."""
    target, weight = float(batch["value"][t, b]), 1.0
    for s in steps_from(batch, t, b):
        rho = math.exp(batch["log_rho"][s, b])
        target += weight * min(rho_bar, rho) * td_error(batch, s, b, gamma)
        weight *= gamma * gae_lambda * min(c_bar, rho)
    return target


def vtrace(
    batch: dict[str, Array], gamma: float, gae_lambda: float, rho_bar: float, c_bar: float
) -> tuple[Array, Array]:
    """min(ρ̄, ρ_t) (r_t + γ v_{t+1} − V_t), and v."""
    given = gamma, gae_lambda, rho_bar, c_bar
    advantage, value_target = np.zeros((2, *batch["reward"].shape))
    for t, b in np.ndindex(advantage.shape):
        value_target[t, b] = vtrace_target(batch, t, b, *given)
        if not batch["mask"][t, b]:
            continue
        after = float(batch["value"][t + 1, b])
        if len(steps_from(batch, t, b)) > 1:
            after = vtrace_target(batch, t + 1, b, *given)
        discount = 0.0 if batch["terminated"][t, b] else gamma
        error = float(batch["reward"][t, b]) + discount * after - float(batch["value"][t, b])
        advantage[t, b] = min(rho_bar, math.exp(batch["log_rho"][t, b])) * error
    return advantage, value_target


def clipped_surrogate(log_ratio: float, advantage: float, clip: float) -> float:
    ratio = math.exp(log_ratio)
    return -min(ratio * advantage, min(max(ratio, 1 - clip), 1 + clip) * advantage)
