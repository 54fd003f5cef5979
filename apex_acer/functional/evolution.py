"""Search in the space of parameters: the mathematics of the cross-entropy method."""

from __future__ import annotations

import torch
from torch import Tensor


def mean_fitness(numbers: Tensor, fitness: Tensor) -> tuple[Tensor, Tensor]:
    """The different members and the mean fitness of each, `[M]`, of B episodes.

    Args:
        numbers: `[B]`, the number of the member that played each episode.
        fitness: `[B]`, each episode's return.
    """
    members, index = torch.unique(numbers, return_inverse=True)
    counts = torch.bincount(index)
    sums = fitness.new_zeros(len(members)).index_add_(0, index, fitness)
    return members, sums / counts


def fit_elites(elites: Tensor, extra_variance: float) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation `[P]` of the next members, from the parameters `[E, P]` of the best ones.

    μ and σ² are maximum likelihood: the mean, and the mean square of deviations from it. `extra_variance`, Z, is added to σ²
    (Szita and Lőrincz 2006). They are computed in float64.
    """
    wide = elites.double()
    variance = wide.var(0, correction=0) + extra_variance
    return wide.mean(0).to(elites.dtype), variance.sqrt().to(elites.dtype)


def extra_variance(extra_std: float, generation: int, num_generations: int) -> float:
    """Z of a generation: extra_std² · max(0, 1 − generation / num_generations), constant if `num_generations` is 0."""
    left = max(0.0, 1 - generation / num_generations) if num_generations else 1.0
    return extra_std**2 * left


def discounted_return(reward: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """Σ γ^t r_t of each episode, `[B]` float64, over the unmasked steps of `reward` `[T, B]`, which begin at t = 0."""
    powers = gamma ** torch.arange(len(reward), dtype=torch.float64, device=reward.device)
    return (torch.where(mask, reward, 0.0) * powers.unsqueeze(-1)).sum(0)
