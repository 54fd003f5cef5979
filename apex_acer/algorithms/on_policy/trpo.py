"""Trust region policy optimisation: natural gradient, line search under a bound on the KL divergence (arXiv 1502.05477)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from apex_acer.algorithms.algorithm import Agent, Descent, Group, LossOutput, trainable
from apex_acer.algorithms.on_policy.common import ADVANTAGE, VALUE_TARGET, OnPolicy, minibatches
from apex_acer.algorithms.on_policy.settings import TrpoConfig
from apex_acer.algorithms.samples import Sequences, flat
from apex_acer.functional import (
    Distribution,
    conjugate_gradient,
    each_tensor,
    fisher_product,
    masked_mean,
    masked_means,
)
from apex_acer.networks.policies import ValueNetwork

ITERATIONS = 15  # of conjugate gradients
SHRINK, TRIES = 0.8, 15  # of the line search
TINY = 1e-12  # the least curvature


class Trpo(OnPolicy):
    """TRPO: the policy takes one natural gradient step on the whole batch; the optimizer trains the critic, a network."""

    settings_class = TrpoConfig
    settings: TrpoConfig
    critic: ValueNetwork

    def __init__(self, agent: Agent, device: torch.device) -> None:
        super().__init__(agent, device)
        self._parameters: list[Tensor] = list(trainable(self.network))

    def groups(self) -> dict[str, Group]:
        return {"critic": Group(trainable(self.critic))}

    def update(self, samples: Sequences, descent: Descent) -> None:
        """Takes one step of the policy, then the critic's epochs."""
        samples = self.prepare(samples, descent)
        descent.count(self.improve(samples))
        for _ in range(self.settings.value_epochs):
            for part in minibatches(samples, self.settings.value_minibatches):
                descent.step(part)

    def loss(self, samples: Sequences) -> LossOutput:
        """The critic's loss, the mean of ½ (target − V)²."""
        mask = samples.mask
        value = self.critic(flat(samples.obs)).view(mask.shape)
        losses = 0.5 * (samples.targets[VALUE_TARGET] - value).square()
        metrics = masked_means({"loss": losses, "value_loss": losses, "value": value}, mask)
        return LossOutput(masked_mean(losses, mask), metrics, torch.zeros_like(samples.importance), mask.sum())

    def improve(self, samples: Sequences) -> dict[str, Tensor]:
        """Moves the policy along the natural gradient by a line search within `max_kl`; returns metrics."""
        obs, first = flat(samples.obs), samples.first
        behaviour, action = self.network.head.recorded(samples.action, samples.extras)
        behaviour_log_prob = behaviour.log_prob(action)

        def policy() -> Distribution:
            return self.network.evaluate(obs, first, {})[0]

        def surrogate(candidate: Distribution) -> Tensor:
            ratio = (candidate.log_prob(action) - behaviour_log_prob).exp()
            return masked_mean(ratio * samples.targets[ADVANTAGE], samples.mask)

        start = policy()
        before, old = surrogate(start), each_tensor(start, Tensor.detach)
        step = self._natural_step(before, masked_mean(old.kl(start), samples.mask))

        def is_better() -> Tensor:
            new = policy()
            return (surrogate(new) > before) & (masked_mean(old.kl(new), samples.mask) <= self.settings.max_kl)

        scale = self._search(step, is_better)
        with torch.no_grad():
            metrics = masked_means({"behaviour_kl": behaviour.kl(policy()), "entropy": old.entropy()}, samples.mask)
        return {**metrics, "policy_loss": -before.detach(), "step_scale": before.new_tensor(scale)}

    def _natural_step(self, surrogate: Tensor, kl: Tensor) -> Tensor:
        """The step along F⁻¹ g whose KL divergence, approximated to second order, is `max_kl`."""
        gradients = torch.autograd.grad(surrogate, self._parameters, retain_graph=True, materialize_grads=True)
        gradient = torch.cat([part.flatten() for part in gradients])
        product = fisher_product(kl, self._parameters, self.settings.damping)
        direction = conjugate_gradient(product, gradient, ITERATIONS)
        curvature = direction @ product(direction)
        return direction * (2 * self.settings.max_kl / curvature.clamp(min=TINY)).sqrt()

    @torch.no_grad()
    def _search(self, step: Tensor, is_better: Callable[[], Tensor]) -> float:
        """Line search: takes the largest tried share of `step` that is better and returns it; 0 if none is."""
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
