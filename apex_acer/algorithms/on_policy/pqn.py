"""PQN: Q(λ) from fresh data by many environments, without replay and target network (arXiv 2407.04811).

In the paper's analysis layer normalisation (`network.layer_norm`) is what keeps it from diverging.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from apex_acer.algorithms.algorithm import Algorithm, Descent, LossOutput
from apex_acer.algorithms.epsilon_greedy import EpsilonGreedy
from apex_acer.algorithms.on_policy.common import minibatches
from apex_acer.algorithms.on_policy.settings import PqnConfig
from apex_acer.algorithms.samples import Sequences, flat, with_prepared, without_last
from apex_acer.functional import masked_means, q_lambda_target, squared_error_loss
from apex_acer.networks.discrete import QNetwork

TARGET = "q_target"  # in `Sequences.targets`


class PqnAgent(EpsilonGreedy):
    """An ε-greedy policy whose ε, the same in all environments, falls linearly."""

    settings: PqnConfig

    def exploration(self, num: int, actor: int | None = None, env_steps: int = 0) -> Tensor:
        """Epsilons `[num]`: from `epsilon` to `epsilon_final` after the first `epsilon_fraction` of the schedule."""
        settings = self.settings
        end = settings.epsilon_fraction * self.config.schedule_end
        left = max(0.0, 1 - env_steps / end) if end else 0.0
        epsilon = settings.epsilon_final + left * (settings.epsilon - settings.epsilon_final)
        return torch.full((num,), settings.evaluation_epsilon if actor is None else epsilon)


class Pqn(Algorithm):
    """A Q network; the same weights choose actions, evaluate them in the targets and learn."""

    settings_class = PqnConfig
    agent_class = PqnAgent
    settings: PqnConfig
    network: QNetwork

    def update(self, samples: Sequences, descent: Descent) -> None:
        """Takes epochs of minibatches against targets that are computed once, before the first step."""
        samples = self.prepare(samples)
        for _ in range(self.settings.epochs):
            for part in minibatches(samples, self.settings.minibatches):
                descent.step(part)

    def prepare(self, samples: Sequences) -> Sequences:
        """`samples`, of `prepare`d observations but the last, with each step's Q(λ) target as `targets`."""
        samples = with_prepared(self.network, samples)
        with torch.no_grad():
            target = q_lambda_target(
                reward=samples.reward,
                q_values=self.evaluate(samples),
                terminated=samples.terminated,
                truncated=samples.last,
                mask=samples.mask,
                gamma=self.settings.gamma,
                q_lambda=self.settings.q_lambda,
            )
        return dataclasses.replace(without_last(samples), targets={TARGET: target})

    def evaluate(self, samples: Sequences) -> Tensor:
        """Q `[L, B, A]` of `prepare`d observations `[L, B, *input]`."""
        return self.network.unroll(flat(samples.obs), samples.first, samples.state).q_values

    def loss(self, samples: Sequences) -> LossOutput:
        """The mean of ½ (target − Q)² over unmasked steps."""
        mask, target = samples.mask, samples.targets[TARGET]
        q_values = self.evaluate(samples)  # [T, B, A]
        q_taken = q_values.gather(-1, samples.action.unsqueeze(-1)).squeeze(-1)  # [T, B]
        loss, error = squared_error_loss(q_taken, target, samples.importance, mask)
        means = {"td_error": error.abs(), "q_taken": q_taken, "q_target": target, "value": q_values.amax(-1)}
        metrics = masked_means(means, mask) | {"loss": loss.detach(), "q_loss": loss.detach()}
        return LossOutput(loss, metrics, torch.zeros_like(samples.importance), mask.sum())
