"""Soft actor-critic from replay: twin critics, a squashed Gaussian policy and a learned temperature (arXiv 1812.05905).

With `batch_norm` it is CrossQ (arXiv 1902.05605, version 4): batch renormalisation takes the place of target critics.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Collection

import torch
from torch import Tensor, nn

from apex_acer.algorithms.algorithm import Action, Agent, Group, LossOutput, polyak_update_, trainable
from apex_acer.algorithms.critics import CriticLosses, uniform
from apex_acer.algorithms.sac.settings import SacConfig
from apex_acer.algorithms.samples import Transitions
from apex_acer.config import RunConfig
from apex_acer.functional import (
    masked_mean,
    masked_means,
    soft_policy_loss,
    soft_target,
    squashed_log_prob,
    temperature_loss,
)
from apex_acer.networks.batch_norm import advance
from apex_acer.networks.critics import Critics, GaussianOutput, SquashedGaussian
from apex_acer.networks.network import State, to_train
from apex_acer.protocol.specification import EnvironmentSpec


class SacAgent(Agent):
    """Samples from a squashed Gaussian, whose own randomness explores."""

    settings: SacConfig
    network: SquashedGaussian

    def __init__(self, config: RunConfig, spec: EnvironmentSpec) -> None:
        super().__init__(config, spec)
        self.network = SquashedGaussian(config.network, spec, batch_norm=self.settings.batch_norm)

    def act(
        self, obs: Tensor, state: State, *, greedy: bool, exploration: Tensor, generator: torch.Generator, updates: int
    ) -> Action:
        """Samples from the policy, or takes its squashed mean if `greedy`; before the first update it is uniform."""
        output = self.network(obs)
        if greedy:
            return Action(output.action, {}, state)
        noise = torch.randn(output.mean.shape, generator=generator, device=obs.device)
        sampled = torch.tanh(output.mean + output.log_std.exp() * noise)
        return Action(sampled if updates or self.config.load else uniform(noise), {}, state)


class Sac(CriticLosses):
    """A policy, its critics, their target networks, and the temperature α, which is learned as its logarithm.

    CrossQ has no target networks. Its critics see both ends of all transitions as one batch, so that batch renormalisation
    treats them alike.
    """

    settings_class = SacConfig
    agent_class = SacAgent
    settings: SacConfig
    network: SquashedGaussian

    def __init__(self, agent: Agent, device: torch.device) -> None:
        super().__init__(agent, device)
        config, settings = agent.config, self.settings
        sizes = settings.critic_hidden_sizes or config.network.hidden_sizes
        layers, width = dataclasses.replace(config.network, hidden_sizes=sizes), self.network.encoder_width
        critics = Critics(layers, agent.spec, settings.num_critics, width, batch_norm=settings.batch_norm)
        self.critics = to_train(critics, config, device)
        self.temperature = nn.ParameterDict({"log": torch.tensor(math.log(self.settings.initial_temperature))})
        self.modules |= {"critics": self.critics, "temperature": self.temperature.to(device)}
        if not settings.batch_norm:
            self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)
            self.modules["target_critics"] = self.target_critics

    def groups(self) -> dict[str, Group]:
        parameters = self.parameters() | {"temperature": trainable(self.temperature)}
        every = self.settings.policy_every
        return {name: Group(group, every=1 if name == "critics" else every) for name, group in parameters.items()}

    def noise(self, samples: Transitions) -> dict[str, Tensor]:
        """Standard normal noise `[2, B, d]` of the policy at both ends of each transition, and shifts of images."""
        action = torch.randn(2, len(samples.importance), self.agent.spec.action_dim)
        return {"action": action, **super().noise(samples)}

    def _policy_loss(self, samples: Transitions, encoded: Tensor) -> LossOutput:
        mask, temperature = samples.mask, self._temperature()
        output = self.network.decide(encoded, mask)
        action, log_prob = _sample(output, samples.noise["action"][0])
        q_values = self.critics.evaluate(encoded, action)
        policy_loss = masked_mean(soft_policy_loss(q_values=q_values, log_prob=log_prob, temperature=temperature), mask)
        target_entropy = -float(self.agent.spec.action_dim)
        alpha_loss = masked_mean(temperature_loss(self.temperature["log"], log_prob, target_entropy), mask)
        means = {
            "value": q_values.detach().amin(0),
            "entropy": -log_prob.detach(),
            "action_std": output.log_std.detach().exp().mean(-1),
        }
        metrics = masked_means(means, mask) | {"policy_loss": policy_loss.detach(), "temperature": temperature}
        return LossOutput(policy_loss + alpha_loss, metrics, torch.zeros_like(log_prob), mask.sum())

    def _estimate(self, samples: Transitions, encoded: Tensor, next_inputs: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            after = self.network.encode(next_inputs)
            action, log_prob = _sample(self.network.decide(after), samples.noise["action"][1])
        q_values, next_q_values = self._both_ends(samples, encoded, after, action)
        target = soft_target(
            reward=samples.reward,
            discount=samples.discount,
            q_values=next_q_values,
            log_prob=log_prob,
            temperature=self._temperature(),
        )
        return q_values, target

    def _both_ends(
        self, samples: Transitions, encoded: Tensor, after: Tensor, next_action: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Q of the actions taken and, without gradient, of the next ones, both `[num_critics, B]`."""
        if not self.settings.batch_norm:
            with torch.no_grad():
                next_q_values = self.target_critics(after, next_action)
            return self.critics(encoded, samples.action), next_q_values
        ends = torch.cat([encoded, after]), torch.cat([samples.action, next_action]), samples.mask.repeat(2)
        q_values, next_q_values = self.critics(*ends).chunk(2, 1)
        return q_values, next_q_values.detach()

    def _temperature(self) -> Tensor:
        log_temperature: Tensor = self.temperature["log"]
        return log_temperature.exp().detach()

    def after_step(self, updates: int, stepped: Collection[str]) -> None:
        if not self.settings.batch_norm:
            polyak_update_(self.target_critics, self.critics, self.settings.ema_decay)
            return
        for name in stepped:
            advance(self.modules[name])


def _sample(output: GaussianOutput, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Reparametrised actions `[B, d]` and their log-densities `[B]`."""
    pre_tanh = output.mean + output.log_std.exp() * noise
    return pre_tanh.tanh(), squashed_log_prob(pre_tanh, output.mean, output.log_std)
