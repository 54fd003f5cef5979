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
from apex_acer.functional import bootstrap_value, masked_means, n_step_target
from apex_acer.networks.discrete import QNetwork


class ApexDqnAgent(EpsilonGreedy):
    """An ε-greedy policy with an ε per environment."""

    settings: ApexDqnConfig

    @property
    def is_dueling(self) -> bool:
        return self.settings.dueling

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
        """Huber loss of Q and the n-step target, weighted by `importance`."""
        settings, mask = self.settings, samples.mask
        q_values = self.network(samples.obs).q_values  # [B, A]
        q_taken = q_values.gather(-1, samples.action.unsqueeze(-1)).squeeze(-1)  # [B]
        with torch.no_grad():
            inputs = self.network.prepare(samples.next_obs)
            evaluated = self.target_network.output(inputs).q_values
            chosen = self.network.output(inputs).q_values if settings.double else evaluated
            value, rescaled = bootstrap_value(chosen, evaluated), settings.value_rescaling
            target = n_step_target(reward=samples.reward, discount=samples.discount, bootstrap=value, rescaled=rescaled)
        loss, error, metrics = q_loss(q_values, q_taken, target, samples.importance, mask)
        return LossOutput(loss, metrics, error.abs(), mask.sum())

    def after_step(self, updates: int, stepped: Collection[str]) -> None:
        if updates % self.settings.target_every == 0:
            self.target_network.load_state_dict(self.network.state_dict())


def q_loss(
    q_values: Tensor, q_taken: Tensor, target: Tensor, importance: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Mean Huber loss over unmasked steps, target − Q `[..., B]`, detached and 0 where masked, and metrics.

    `q_values` are `[..., B, A]`, `importance` is `[B]`, and the others are `[..., B]`.
    """
    error = torch.where(mask, target - q_taken, 0.0)
    huber = nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none")
    loss, error = (importance * huber).sum() / mask.sum().clamp(min=1), error.detach()
    means = {"td_error": error.abs(), "q_taken": q_taken, "q_target": target, "value": q_values.amax(-1)}
    metrics = masked_means(means | {"importance": importance.expand_as(error)}, mask)
    return loss, error, metrics | {"loss": loss.detach(), "q_loss": loss.detach()}
