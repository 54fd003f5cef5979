"""Ape-X DQN: double, dueling n-step Q-learning from prioritized replay, with an epsilon per environment.

Horgan et al. 2018 (arXiv 1803.00933). With uniform replay, one epsilon and one step it is DQN (Mnih et al. 2015) on many
actors, as in Gorila (Nair et al. 2015, arXiv 1507.04296).
"""

from __future__ import annotations

import copy
from collections.abc import Collection

import torch
from torch import Tensor, nn

from apex_acer.algorithms.algorithm import Agent, Algorithm, LossOutput
from apex_acer.algorithms.dqn.settings import ApexDqnConfig
from apex_acer.algorithms.epsilon_greedy import Q_VALUES, EpsilonGreedy
from apex_acer.algorithms.samples import Transitions
from apex_acer.functional import masked_means, munchausen_bonus, n_step_target, quantile_loss, soft_value
from apex_acer.networks.discrete import QNetwork


class ApexDqnAgent(EpsilonGreedy):
    """An ε-greedy policy with an ε per environment."""

    settings: ApexDqnConfig

    @property
    def is_dueling(self) -> bool:
        return self.settings.dueling

    @property
    def num_quantiles(self) -> int:
        return self.settings.quantiles

    def exploration(self, num: int, actor: int | None = None, env_steps: int = 0) -> Tensor:
        """Epsilons `[num]`: epsilon ^ (1 + i / (N − 1) · alpha) for environment i of all N, one per actor in the paper."""
        if actor is None:
            return torch.full((num,), self.settings.evaluation_epsilon)
        return self.spread(num, actor, self.settings.epsilon, self.settings.epsilon_alpha)

    def priority(self, steps: Transitions) -> Tensor:
        """|n-step target − Q| `[k, N]` by the actor's weights alone; 0 on masked steps."""
        q_taken = steps.extras[Q_VALUES].gather(-1, steps.action.unsqueeze(-1)).squeeze(-1)
        value, rescaled = steps.next_extras[Q_VALUES].amax(-1), self.settings.value_rescaling
        target = n_step_target(reward=steps.reward, discount=steps.discount, bootstrap=value, rescaled=rescaled)
        return torch.where(steps.mask, (target - q_taken).abs(), 0.0)


class ApexDqn(Algorithm):
    """A Q network and its target network."""

    settings_class = ApexDqnConfig
    agent_class = ApexDqnAgent
    settings: ApexDqnConfig
    network: QNetwork

    def __init__(self, agent: Agent, device: torch.device) -> None:
        super().__init__(agent, device)
        self.target_network = copy.deepcopy(self.network).requires_grad_(False)
        self.modules["target"] = self.target_network

    def loss(self, samples: Transitions) -> LossOutput:
        """Huber loss of Q and the n-step target, or that of quantiles, weighted by `importance`."""
        output = self.network(samples.obs)
        quantiles, target = quantiles_of(output.quantiles, samples.action), self._target(samples)  # [B, K]
        q_taken = output.q_values.gather(-1, samples.action.unsqueeze(-1)).squeeze(-1)  # [B]
        each = quantile_loss(quantiles, target) if self.settings.quantiles > 1 else None
        loss, error, metrics = q_loss(
            output.q_values, q_taken, target.mean(-1), samples.importance, samples.mask, each=each
        )
        return LossOutput(loss, metrics, error.abs(), samples.mask.sum())

    @torch.no_grad()
    def _target(self, samples: Transitions) -> Tensor:
        """Targets of the K quantiles `[B, K]`."""
        settings, inputs, reward = self.settings, self.network.prepare(samples.next_obs), samples.reward
        evaluated = self.target_network.output(inputs)
        if settings.munchausen:
            before = self.target_network.output(self.network.prepare(samples.obs)).q_values  # of the same statistics
            reward = reward + settings.munchausen * munchausen_bonus(before, samples.action)
            value = soft_value(evaluated.q_values, evaluated.quantiles)
        else:
            chosen = self.network.output(inputs) if settings.double else evaluated
            value = quantiles_of(evaluated.quantiles, chosen.q_values.argmax(-1))
        reward, discount = reward.unsqueeze(-1), samples.discount.unsqueeze(-1)
        return n_step_target(reward=reward, discount=discount, bootstrap=value, rescaled=settings.value_rescaling)

    def after_step(self, updates: int, stepped: Collection[str]) -> None:
        if updates % self.settings.target_every == 0:
            self.target_network.load_state_dict(self.network.state_dict())


def quantiles_of(quantiles: Tensor, action: Tensor) -> Tensor:
    """The quantiles `[B, K]` of an `action` `[B]`, from those of all actions `[B, A, K]`."""
    index = action.view(-1, 1, 1).expand(-1, 1, quantiles.shape[-1])
    return quantiles.gather(1, index).squeeze(1)


def q_loss(
    q_values: Tensor, q_taken: Tensor, target: Tensor, importance: Tensor, mask: Tensor, *, each: Tensor | None = None
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Mean loss over unmasked steps, target − Q `[..., B]`, detached and 0 where masked, and metrics.

    `q_values` are `[..., B, A]`, `importance` is `[B]`, and the others are `[..., B]`. `each` is the loss of each step, or
    None for the Huber loss of target − Q.
    """
    error = torch.where(mask, target - q_taken, 0.0)
    if each is None:
        each = nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none")
    loss, error = (importance * torch.where(mask, each, 0.0)).sum() / mask.sum().clamp(min=1), error.detach()
    means = {"td_error": error.abs(), "q_taken": q_taken, "q_target": target, "value": q_values.amax(-1)}
    metrics = masked_means(means | {"importance": importance.expand_as(error)}, mask)
    return loss, error, metrics | {"loss": loss.detach(), "q_loss": loss.detach()}
