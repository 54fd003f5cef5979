"""The noisy cross-entropy method (Szita and Lőrincz 2006) written out slowly, one episode and one parameter at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def episode_return(rewards: Sequence[Any], mask: Sequence[Any], gamma: float) -> float:
    """The discounted sum of the rewards of one episode, from its first step."""
    total, factor = 0.0, 1.0
    for reward, is_step in zip(rewards, mask, strict=True):
        if is_step:
            total += factor * float(reward)
        factor *= gamma
    return total


def noise_variance(first: float, generation: int, generations: int) -> float:
    """Z: constant, or falling by the same amount with each generation until it is 0."""
    variance = first**2
    for _ in range(generation if generations else 0):
        variance = max(variance - first**2 / generations, 0.0)
    return variance


def mean_returns(numbers: Sequence[int], returns: Sequence[float]) -> dict[int, float]:
    """The mean return of each member's episodes."""
    played: dict[int, list[float]] = {}
    for number, value in zip(numbers, returns, strict=True):
        played.setdefault(int(number), []).append(float(value))
    return {number: sum(values) / len(values) for number, values in played.items()}


def refit(members: Sequence[Sequence[float]], fitness: Sequence[float], num: int, z: float) -> tuple[Any, Any]:
    """Mean and standard deviation of each parameter, from the `num` members with the highest fitness."""
    best = [members[i] for i in sorted(range(len(fitness)), key=lambda i: -fitness[i])[:num]]
    means, stds = [], []
    for values in zip(*best, strict=True):
        mean = sum(map(float, values)) / num
        means.append(mean)
        stds.append((sum((float(value) - mean) ** 2 for value in values) / num + z) ** 0.5)
    return means, stds
