"""The cross-entropy method (de Boer et al. 2005) with extra noise (Szita and Lőrincz 2006)."""

from __future__ import annotations

from apex_acer.algorithms.algorithm import Algorithm, Descent, Group, LossOutput
from apex_acer.algorithms.evolution.members import MEMBER, MemberAgent
from apex_acer.algorithms.evolution.settings import CemConfig
from apex_acer.algorithms.samples import Sequences
from apex_acer.functional import discounted_return, extra_variance, fit_elites, mean_fitness
from apex_acer.networks.members import MemberNetwork


class Cem(Algorithm):
    """CEM: fits a Gaussian with a variance per parameter to the best members of each generation, which is a batch."""

    settings_class = CemConfig
    agent_class = MemberAgent
    settings: CemConfig
    network: MemberNetwork

    def groups(self) -> dict[str, Group]:
        """No parameters: nothing is trained by a gradient."""
        return {}

    def loss(self, samples: Sequences) -> LossOutput:
        """Raises NotImplementedError: there is no loss."""
        raise NotImplementedError

    def update(self, samples: Sequences, descent: Descent) -> None:
        """Moves the distribution to the elites of a batch of whole episodes."""
        settings, network, played = self.settings, self.network, samples.mask[0]
        if not played.any():  # the moments of nothing are not finite
            return
        returns = discounted_return(samples.reward, samples.mask, settings.gamma)[played]
        numbers, fitness = mean_fitness(samples.extras[MEMBER][0, played].squeeze(-1), returns)
        num_elites = max(1, round(settings.elite_fraction * len(numbers)))
        elites = fitness.argsort(descending=True, stable=True)[:num_elites]
        extra = extra_variance(settings.extra_std, int(network.generation) + 1, settings.extra_generations)
        mean, std = fit_elites(network.members(numbers[elites]), extra)
        network.move(mean, std)
        metrics = {"fitness": fitness.mean(), "elite_fitness": fitness[elites].mean(), "member_std": std.mean()}
        descent.count(metrics)
