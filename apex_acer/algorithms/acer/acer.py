"""ACER: off-policy actor-critic with Retrace, truncated importance weights and a trust region (arXiv 1611.01224)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from apex_acer.algorithms.acer.common import AcerBase
from apex_acer.algorithms.acer.settings import AcerConfig
from apex_acer.algorithms.algorithm import Action, LossOutput
from apex_acer.config import RunConfig
from apex_acer.functional import (
    acer_metrics,
    acer_policy_gradient,
    acer_targets,
    kl_gradient,
    squared_error_loss,
    surrogate_loss,
    trust_region_projection,
)
from apex_acer.networks.discrete import ActorCritic, ActorCriticOutput
from apex_acer.networks.memory import State
from apex_acer.protocol.specification import Array, EnvironmentSpec
from apex_acer.protocol.unroll import Batch, Shapes

MU = "log_probs"  # the behaviour policy's only part
ROUNDING = 1e-3  # of the sum of the probabilities of actors, which may compute in bfloat16


class Acer(AcerBase):
    """A network with policy and Q heads, and its average."""

    settings = AcerConfig
    network: ActorCritic
    average_network: ActorCritic

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None:
        assert isinstance(config.algorithm, AcerConfig)
        self._config = config.algorithm
        super().__init__(config, spec, device)

    @staticmethod
    def build_network(config: RunConfig, spec: EnvironmentSpec) -> ActorCritic:
        """An `ActorCritic`, whose output is `pi_logits` and `q_values`."""
        return ActorCritic(config.network, spec)

    @staticmethod
    def behaviour_shapes(config: RunConfig, spec: EnvironmentSpec) -> Shapes:
        """The log-probabilities of all actions; of several choices at once, of all combinations."""
        return {MU: (spec.num_actions,)}

    @staticmethod
    def refusal(behaviour: Mapping[str, Array]) -> str:
        """Probabilities of all actions add up to 1."""
        off = float(np.abs(np.exp(behaviour[MU]).sum(-1) - 1).max(initial=0.0))
        return f"{MU}: probabilities add up to 1 ± {off:.2g}, allowed ± {ROUNDING}" if off > ROUNDING else ""

    @staticmethod
    def act(
        network: nn.Module, obs: Tensor, state: State, *, greedy: bool, exploration: Tensor, generator: torch.Generator
    ) -> Action:
        """Samples from mu = softmax(pi_logits / exploration), or takes its likeliest action if `greedy`."""
        assert isinstance(network, ActorCritic)
        output, state = network.step(obs, state)
        log_mu = network.joint(output.pi_logits.float() / exploration.unsqueeze(-1)).log_softmax(-1)  # [N, A]
        if greedy:
            action = log_mu.argmax(-1)
        else:
            action = torch.multinomial(log_mu.exp(), 1, generator=generator).squeeze(-1)
        return Action(action, {MU: log_mu}, state)

    def loss(self, batch: Batch, updates: int) -> LossOutput:
        """`acer_loss` of a batch of segments."""
        obs, reset = self.inputs(batch)
        output = self.network.unroll(obs, reset, batch.state, self._config.burn_in, batch.fresh)
        output = output._replace(pi_logits=self.network.joint(output.pi_logits))
        with torch.no_grad():
            average = self.average_network.unroll(obs[: -reset.shape[1]], reset[:-1], batch.state)
            logits = self.network.joint(average.pi_logits)
        return acer_loss(self._config, batch, output, logits, self.rewards(batch), self.learned(batch))


def acer_loss(
    given: AcerConfig, batch: Batch, output: ActorCriticOutput, average_logits: Tensor, reward: Tensor, mask: Tensor
) -> LossOutput:
    """ACER's loss of a batch, averaged over its unmasked steps after the trust region's projection.

    Args:
        given: the algorithm's settings.
        batch: the batch; its rewards and mask are not used.
        output: the network's outputs `[T+1, B, A]`, with gradient; the last row is only bootstrapped from.
        average_logits: `[T, B, A]` logits of the average policy.
        reward: `[T, B]` shaped and scaled rewards.
        mask: `[T, B]` bool, false on steps that are not learned from.
    """
    mu, action = batch.behaviour[MU], batch.action
    targets = acer_targets(
        pi_logits=output.pi_logits,
        q_values=output.q_values,
        mu_log_probs=mu,
        action=action,
        reward=reward,
        terminated=batch.terminated,
        mask=mask,
        gamma=given.gamma,
    )
    q_values, log_average = output.q_values[:-1], average_logits.log_softmax(-1)
    q_taken = q_values.gather(-1, action.unsqueeze(-1)).squeeze(-1)  # [T, B]
    gradient = acer_policy_gradient(
        pi_logits=output.pi_logits[:-1],
        mu_log_probs=mu,
        action=action,
        q_values=q_values,
        q_ret=targets.q_ret,
        truncation_threshold=given.truncation_threshold,
        entropy_cost=given.entropy_cost,
    )
    z = trust_region_projection(gradient, *kl_gradient(targets.log_pi, log_average, given.trust_region_delta))
    policy_loss = surrogate_loss(output.pi_logits[:-1].softmax(-1), z, batch.importance, mask)
    q_loss, error = squared_error_loss(q_taken, targets.q_ret, batch.importance, mask)
    total = policy_loss + given.q_cost * q_loss
    metrics = acer_metrics(targets, log_average, (z != gradient).any(-1), mask, given.truncation_threshold)
    metrics |= {"loss": total.detach(), "policy_loss": policy_loss.detach(), "q_loss": q_loss.detach()}
    priorities = error.abs().sum(0) / mask.sum(0).clamp(min=1)
    return LossOutput(total, metrics, priorities, mask.sum())
