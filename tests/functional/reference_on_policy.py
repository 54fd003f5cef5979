"""Distributions, GAE, V-trace and PPO's losses in float64, one step, one column, one action at a time."""

from __future__ import annotations

import math


def entropy(probs):
    return -sum(p * math.log(p) for p in probs if p > 0)


def kl(probs, others):
    if any(p > 0 and q == 0 for p, q in zip(probs, others, strict=True)):
        return math.inf
    return sum(p * math.log(p / q) for p, q in zip(probs, others, strict=True) if p > 0)


def gaussian_entropy(log_std):
    return sum(0.5 * math.log(2 * math.pi * math.e * math.exp(s) ** 2) for s in log_std)
