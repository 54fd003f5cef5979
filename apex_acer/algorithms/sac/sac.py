"""Soft actor-critic from replay: twin critics, a squashed Gaussian policy and a learned temperature (arXiv 1812.05905)."""

from __future__ import annotations

import copy
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
from apex_acer.networks.critics import Critics, GaussianOutput, SquashedGaussian
from apex_acer.networks.network import State, to_train
from apex_acer.protocol.specification import EnvironmentSpec


class SacAgent(Agent):
    """Samples from a squashed Gaussian, whose own randomness explores."""

    settings: SacConfig
    network: SquashedGaussian

    def __init__(self, config: RunConfig, spec: EnvironmentSpec) -> None:
        super().__init__(config, spec)
        self.network = SquashedGaussian(config.network, spec)

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
    """A policy, its critics, their target networks, and the temperature α, which is learned as its logarithm."""

    settings_class = SacConfig
    agent_class = SacAgent
    settings: SacConfig
    network: SquashedGaussian

    def __init__(self, agent: Agent, device: torch.device) -> None:
        super().__init__(agent, device)
        config = agent.config
        width = self.network.encoder_width
        critics = Critics(config.network, agent.spec, self.settings.num_critics, width)
        self.critics = to_train(critics, config, device)
        self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)
        self.temperature = nn.ParameterDict({"log": torch.tensor(math.log(self.settings.initial_temperature))})
        self.modules |= {
            "critics": self.critics,
            "target_critics": self.target_critics,
            "temperature": self.temperature.to(device),
        }

    def groups(self) -> dict[str, Group]:
        parameters = self.parameters() | {"temperature": trainable(self.temperature)}
        return {name: Group(group) for name, group in parameters.items()}

    def noise(self, samples: Transitions) -> dict[str, Tensor]:
        """Standard normal noise `[2, B, d]` of the policy at both ends of each transition, and shifts of images."""
        action = torch.randn(2, len(samples.importance), self.agent.spec.action_dim)
        return {"action": action, **super().noise(samples)}

    def _policy_loss(self, samples: Transitions, encoded: Tensor) -> LossOutput:
        mask, temperature = samples.mask, self._temperature()
        output = self.network.decide(encoded)
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

    @torch.no_grad()
    def _target(self, samples: Transitions, next_inputs: Tensor) -> Tensor:
        encoded = self.network.encode(next_inputs)
        action, log_prob = _sample(self.network.decide(encoded), samples.noise["action"][1])
        return soft_target(
            reward=samples.reward,
            discount=samples.discount,
            q_values=self.target_critics(encoded, action),
            log_prob=log_prob,
            temperature=self._temperature(),
        )

    def _temperature(self) -> Tensor:
        log_temperature: Tensor = self.temperature["log"]
        return log_temperature.exp().detach()

    def after_step(self, updates: int, stepped: Collection[str]) -> None:
        polyak_update_(self.target_critics, self.critics, self.settings.ema_decay)


def _sample(output: GaussianOutput, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Reparametrised actions `[B, d]` and their log-densities `[B]`."""
    pre_tanh = output.mean + output.log_std.exp() * noise
    return pre_tanh.tanh(), squashed_log_prob(pre_tanh, output.mean, output.log_std)
