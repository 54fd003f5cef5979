"""ACER for continuous actions (arXiv 1611.01224, algorithm 3) in float64, one step, one column, one dimension at a time."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from apex_acer.protocol.specification import Array
from tests.functional import reference
from tests.functional.reference import Sizes


class Loss(NamedTuple):
    total: float
    d_mean: Array  # [T+1, B, d]
    d_value: Array  # [T+1, B]
    d_advantage: Array  # [T, B], of the actions taken
    d_others: Array  # [n, T, B], of the u_i
    td_error: Array  # [T, B]
    bound_share: float  # of the unmasked steps, those that the trust region changes


def random_batch(seed: int, sizes: Sizes) -> dict[str, Array]:
    """Gaussian behaviour policies, what they did, and the episodes of `reference.random_batch`; `sizes.actions` is d."""
    rng = np.random.default_rng(seed)
    names = ("reward", "terminated", "truncated", "mask", "importance")
    batch = {name: array for name, array in reference.random_batch(seed, sizes).items() if name in names}
    batch["mu_mean"] = 1.1 * rng.normal(size=sizes)
    batch["mu_log_std"] = np.log(rng.uniform(0.5, 1.5, size=sizes))
    batch["action"] = batch["mu_mean"] + np.exp(batch["mu_log_std"]) * rng.normal(size=sizes)
    return batch


def density(action: Array, mean: Array, log_std: Array) -> float:
    product = 1.0
    for a, m, s in zip(action, mean, log_std, strict=True):
        sigma = math.exp(s)
        product *= math.exp(-((a - m) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))
    return product


def ratio(action: Array, mean: Array, log_std: Array, mu_mean: Array, mu_log_std: Array) -> float:
    return density(action, mean, log_std) / density(action, mu_mean, mu_log_std)


def score(action: Array, mean: Array, log_std: Array) -> Array:
    """∇ log f(a) with respect to the mean."""
    return np.array([(a - m) / math.exp(s) ** 2 for a, m, s in zip(action, mean, log_std, strict=True)])


def kl(mean: Array, log_std: Array, other_mean: Array, other_log_std: Array) -> float:
    total = 0.0
    for m, s, o, r in zip(mean, log_std, other_mean, other_log_std, strict=True):
        total += r - s + (math.exp(s) ** 2 + (m - o) ** 2) / (2 * math.exp(r) ** 2) - 0.5
    return total


def ratios(batch: dict[str, Array]) -> Array:
    """ρ of the actions taken and of those sampled now, `[T, B]` each."""
    found = np.zeros((2, *batch["mask"].shape))
    for t, b in np.ndindex(batch["mask"].shape):
        for i, name in enumerate(("action", "other_action")):
            mu = batch["mu_mean"][t, b], batch["mu_log_std"][t, b]
            found[i, t, b] = ratio(batch[name][t, b], batch["mean"][t, b], batch["log_std"], *mu)
    return found


def targets(batch: dict[str, Array], q_taken: Array, gamma: float) -> tuple[Array, Array, Array]:
    """Q_ret, Q^opc and V's target, `[T, B]` each."""
    rho, _ = ratios(batch)
    given = q_taken, batch["value"], batch["reward"], batch["terminated"], batch["truncated"]
    trace = np.minimum(1, rho ** (1 / batch["mean"].shape[-1]))
    q_ret = reference.retrace(*given, trace, gamma)
    q_opc = reference.retrace(*given, np.ones_like(rho), gamma)
    return q_ret, q_opc, np.minimum(1, rho) * (q_ret - q_taken) + batch["value"][:-1]


def policy_gradient(step: dict[str, Array], q_opc: float, q_other: float, value: float, threshold: float) -> Array:
    """d/d mean of one step's objective; `step` has its action, other_action, mean, log_std, mu_mean and mu_log_std."""
    f, mu = (step["mean"], step["log_std"]), (step["mu_mean"], step["mu_log_std"])
    rho, other_rho = (ratio(step[name], *f, *mu) for name in ("action", "other_action"))
    gradient = min(threshold, rho) * (q_opc - value) * score(step["action"], *f)
    if other_rho > threshold:
        gradient = gradient + (other_rho - threshold) / other_rho * (q_other - value) * score(step["other_action"], *f)
    return gradient


def step_of(batch: dict[str, Array], t: int, b: int) -> dict[str, Array]:
    names = ("action", "other_action", "mean", "mu_mean", "mu_log_std")
    return {name: batch[name][t, b] for name in names} | {"log_std": batch["log_std"]}


def acer_loss(
    batch: dict[str, Array], *, gamma: float, truncation_threshold: float, trust_region_delta: float, q_cost: float
) -> Loss:
    """The loss of a `random_batch` and its derivatives, given what the networks say of it."""
    mask, value = batch["mask"], batch["value"]
    mean_advantage = batch["other_advantages"].mean(0)
    q_taken = value[:-1] + batch["advantage"] - mean_advantage
    q_other = value[:-1] + batch["other_advantage"] - mean_advantage
    q_ret, q_opc, value_target = targets(batch, q_taken, gamma)
    total, num_bound, count = 0.0, 0, max(1, int(mask.sum()))
    d_mean, d_value, td_error = np.zeros_like(batch["mean"]), np.zeros_like(value), np.zeros(mask.shape)
    d_advantage, d_others = np.zeros(mask.shape), np.zeros_like(batch["other_advantages"])
    for t, b in zip(*np.nonzero(mask), strict=True):
        step, weight = step_of(batch, t, b), float(batch["importance"][b]) / count
        gradient = policy_gradient(step, q_opc[t, b], q_other[t, b], value[t, b], truncation_threshold)
        k = -score(batch["average_mean"][t, b], step["mean"], step["log_std"])  # the divergence grows away from it
        z = reference.project(gradient, k, trust_region_delta)
        error, value_error = q_ret[t, b] - q_taken[t, b], value_target[t, b] - value[t, b]
        total += weight * (-reference.dot(z, step["mean"]) + q_cost * 0.5 * (error**2 + value_error**2))
        d_mean[t, b] = -weight * z
        d_value[t, b] = -weight * q_cost * (error + value_error)
        d_advantage[t, b] = -weight * q_cost * error
        d_others[:, t, b] = weight * q_cost * error / len(d_others)
        td_error[t, b] = abs(error)
        num_bound += bool((z != gradient).any())
    return Loss(total, d_mean, d_value, d_advantage, d_others, td_error, num_bound / count)
