"""Soft actor-critic from replay: twin critics, a squashed Gaussian policy and a learned temperature (arXiv 1812.05905)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from apex_acer.algorithms.algorithm import Action, Feeding, Group, LossOutput, SeparateLosses, trained
from apex_acer.algorithms.sac.settings import SacConfig
from apex_acer.algorithms.windows import (
    critics_loss,
    follow_,
    shaped_return,
    window_ends,
)
from apex_acer.config import RunConfig
from apex_acer.functional import (
    NStep,
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
from apex_acer.protocol.unroll import Batch, Shapes


class Temperature(nn.Module):
    """The weight α of the entropy, as its logarithm."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(initial)))


class Sac(SeparateLosses):
    """A policy, its critics and their slow copies, and the temperature."""

    settings = SacConfig
    network: SquashedGaussian

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None:
        self._config, self._stack, self._dim = settings(config), spec.stack, spec.action_dim
        self.network = to_train(self.build_network(config, spec), config, device)
        self.critics = to_train(Critics(config.network, spec, self._config.critics), config, device)
        self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)
        self.temperature = Temperature(self._config.initial_temperature).to(device)
        self.modules = {
            "network": self.network,
            "critics": self.critics,
            "target_critics": self.target_critics,
            "temperature": self.temperature,
        }

    @staticmethod
    def build_network(config: RunConfig, spec: EnvironmentSpec) -> SquashedGaussian:
        """A `SquashedGaussian`, whose output is `action`, `mean` and `log_std`."""
        return SquashedGaussian(config.network, spec)

    @staticmethod
    def behaviour_shapes(config: RunConfig, spec: EnvironmentSpec) -> Shapes:
        """Nothing: the critics judge any action, however likely it was."""
        return {}

    @staticmethod
    def exploration(config: RunConfig, num: int, actor: int | None = None) -> Tensor:
        """1 `[num]`: the policy's own randomness explores."""
        return torch.ones(num)

    @staticmethod
    def act(
        network: nn.Module, obs: Tensor, state: State, *, greedy: bool, exploration: Tensor, generator: torch.Generator
    ) -> Action:
        """Samples from the policy, or takes its squashed mean if `greedy`; before the first update at random."""
        assert isinstance(network, SquashedGaussian)
        output = network(obs)
        if greedy:
            return Action(output.action, {}, state)
        noise = torch.randn(output.mean.shape, generator=generator, device=obs.device)
        action = torch.tanh(output.mean + output.log_std.exp() * noise)
        return Action(torch.where(network.trained, action, torch.erf(noise / 2**0.5)), {}, state)  # uniform in the box

    @staticmethod
    def feeding(config: RunConfig) -> Feeding:
        """Only replay: single steps, each with the n − 1 steps after it."""
        return Feeding(fresh=False, window=settings(config).n_steps)

    def groups(self) -> dict[str, Group]:
        """Policy, critics and temperature, each with its own optimizer."""
        return {name: Group(trained(self.modules[name])) for name in ("network", "critics", "temperature")}

    def noise(self, batch: Batch) -> dict[str, Tensor]:
        """What the policy's actions at both ends of each window are made of, `[2, B, d]`."""
        return {"action": torch.randn(2, len(batch.fresh), self._dim)}

    def losses(self, batch: Batch, updates: int) -> list[Callable[[], LossOutput]]:
        """The critics' loss, and those of policy and temperature; each has gradient to its own group only."""
        ahead = shaped_return(self._config, batch.reward, batch.terminated, batch.truncated, batch.mask)
        first, after = (self.network.prepare(obs) for obs in window_ends(batch, ahead.length, self._stack))
        return [partial(self._critics_loss, batch, ahead, first, after), partial(self._policy_loss, batch, first)]

    def _critics_loss(self, batch: Batch, ahead: NStep, first: Tensor, after: Tensor) -> LossOutput:
        target = self._target(ahead, after, batch.noise["action"][1])
        return critics_loss(self.critics(first, batch.action[0]), target, batch)

    def _policy_loss(self, batch: Batch, first: Tensor) -> LossOutput:
        mask, temperature = batch.mask[0], self._temperature()
        output = self.network.output(first)
        action, log_prob = _sample(output, batch.noise["action"][0])
        q_values = self.critics.judge(first, action)
        policy_loss = masked_mean(soft_policy_loss(q_values=q_values, log_prob=log_prob, temperature=temperature), mask)
        alpha_loss = masked_mean(temperature_loss(self.temperature.log, log_prob, -float(self._dim)), mask)
        samples = {
            "value": q_values.detach().amin(0),
            "entropy": -log_prob.detach(),
            "action_std": output.log_std.detach().exp().mean(-1),
        }
        metrics = masked_means(samples, mask) | {"policy_loss": policy_loss.detach(), "temperature": temperature}
        return LossOutput(policy_loss + alpha_loss, metrics, torch.zeros_like(log_prob), mask.sum())

    @torch.no_grad()
    def _target(self, ahead: NStep, after: Tensor, noise: Tensor) -> Tensor:
        action, log_prob = _sample(self.network.output(after), noise)
        return soft_target(
            reward=ahead.reward,
            discount=ahead.discount,
            q_values=self.target_critics(after, action),
            log_prob=log_prob,
            temperature=self._temperature(),
        )

    def _temperature(self) -> Tensor:
        return self.temperature.log.exp().detach()

    def after_step(self, metrics: Mapping[str, Tensor], updates: int) -> None:
        """Moves the target critics towards the critics."""
        self.network.trained.fill_(True)
        follow_(self.target_critics, self.critics, self._config.ema_decay)


def settings(config: RunConfig) -> SacConfig:
    """The `[algorithm]` section of a SAC run."""
    assert isinstance(config.algorithm, SacConfig)
    return config.algorithm


def _sample(output: GaussianOutput, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Reparametrised actions `[B, d]` and their log-densities `[B]`."""
    pre_tanh = output.mean + output.log_std.exp() * noise
    return pre_tanh.tanh(), squashed_log_prob(pre_tanh, output.mean, output.log_std)
