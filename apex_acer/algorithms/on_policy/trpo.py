"""Trust region policy optimisation: natural gradient, line search under a bound on the KL divergence (arXiv 1502.05477)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from apex_acer.algorithms.algorithm import Descent, Group, LossOutput, trained
from apex_acer.algorithms.on_policy.common import ADVANTAGE, VALUE_TARGET, OnPolicy
from apex_acer.algorithms.on_policy.settings import TrpoConfig
from apex_acer.config import RunConfig
from apex_acer.functional import (
    Distribution,
    conjugate_gradient,
    each_tensor,
    fisher_product,
    masked_mean,
    masked_means,
)
from apex_acer.networks.policy_value import PolicyNetwork, ValueNetwork
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import Batch

ITERATIONS = 15  # of conjugate gradients
SHRINK, TRIES = 0.8, 15  # of the line search
TINY = 1e-12  # the least curvature


class Trpo(OnPolicy):
    """The policy improves by one natural step on the whole batch; the critic, a network of its own, has the optimizer."""

    settings = TrpoConfig
    critic: ValueNetwork

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None:
        super().__init__(config, spec, device)
        self._config = settings(config)
        self._parameters: list[Tensor] = list(trained(self.network))

    @staticmethod
    def build_network(config: RunConfig, spec: EnvironmentSpec) -> PolicyNetwork:
        """A `PolicyNetwork` without V, whose output is `pi_logits`, or `mean` and `log_std` of a `Box`."""
        return PolicyNetwork(config.network, spec, settings(config).initial_std, with_value=False)

    def groups(self) -> dict[str, Group]:
        """The critic's parameters."""
        return {"critic": Group(trained(self.critic))}

    def learn(self, batch: Batch, descent: Descent) -> None:
        """One step of the policy, and then the critic's epochs."""
        descent.count(self.improve(batch))
        for _ in range(self._config.value_epochs):
            for part in self.minibatches(batch, self._config.value_minibatches):
                descent.step(part)

    def loss(self, batch: Batch, updates: int) -> LossOutput:
        """The critic's: ½ (target − V)²."""
        value = self.critic(self.inputs(batch, ahead=False).obs).view(batch.mask.shape)
        losses = 0.5 * (batch.targets[VALUE_TARGET] - value).square()
        metrics = masked_means({"loss": losses, "value_loss": losses, "value": value}, batch.mask)
        unused = torch.zeros_like(batch.importance)
        return LossOutput(masked_mean(losses, batch.mask), metrics, unused, batch.mask.sum())

    def improve(self, batch: Batch) -> dict[str, Tensor]:
        """Moves the policy along the natural gradient, as far as the surrogate improves within `max_kl`; its metrics."""
        obs, reset = self.inputs(batch, ahead=False)
        behaviour, action = self.network.head.recorded(batch.action, batch.behaviour)
        behaviour_log_prob = behaviour.log_prob(action)

        def policy() -> Distribution:
            return self.network.judge(obs, reset, {}).policy

        def surrogate(of: Distribution) -> Tensor:
            ratio = (of.log_prob(action) - behaviour_log_prob).exp()
            return masked_mean(ratio * batch.targets[ADVANTAGE], batch.mask)

        start = policy()
        before, old = surrogate(start), each_tensor(start, Tensor.detach)
        step = self._natural_step(before, masked_mean(old.kl(start), batch.mask))

        def is_better() -> Tensor:
            now = policy()
            return (surrogate(now) > before) & (masked_mean(old.kl(now), batch.mask) <= self._config.max_kl)

        scale = self._search(step, is_better)
        with torch.no_grad():
            metrics = masked_means({"behaviour_kl": behaviour.kl(policy()), "entropy": old.entropy()}, batch.mask)
        return {**metrics, "policy_loss": -before.detach(), "step_scale": before.new_tensor(scale)}

    def _natural_step(self, surrogate: Tensor, kl: Tensor) -> Tensor:
        """The step along F⁻¹ g at whose end the quadratic approximation of the KL divergence is `max_kl`."""
        gradients = torch.autograd.grad(surrogate, self._parameters, retain_graph=True, materialize_grads=True)
        gradient = torch.cat([part.flatten() for part in gradients])
        product = fisher_product(kl, self._parameters, self._config.damping)
        direction = conjugate_gradient(product, gradient, ITERATIONS)
        curvature = direction @ product(direction)
        return direction * (2 * self._config.max_kl / curvature.clamp(min=TINY)).sqrt()

    @torch.no_grad()
    def _search(self, step: Tensor, is_better: Callable[[], Tensor]) -> float:
        """Takes as much of `step` as is better; returns its share, 0 if the parameters stay as they are."""
        start = torch.cat([parameter.flatten() for parameter in self._parameters])
        for scale in (SHRINK**number for number in range(TRIES)):
            self._set(start + scale * step)
            if is_better():
                return scale
        self._set(start)
        return 0.0

    def _set(self, vector: Tensor) -> None:
        sizes = [parameter.numel() for parameter in self._parameters]
        for parameter, values in zip(self._parameters, torch.split(vector, sizes), strict=True):
            parameter.copy_(values.view_as(parameter))


def settings(config: RunConfig) -> TrpoConfig:
    """The `[algorithm]` section of a TRPO run."""
    assert isinstance(config.algorithm, TrpoConfig)
    return config.algorithm
