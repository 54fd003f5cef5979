"""ACER: off-policy actor-critic with Retrace, truncated importance weights and a trust region (arXiv 1611.01224)."""

from __future__ import annotations

import torch
from torch import Tensor

from apex_acer.algorithms.acer.common import AcerBase
from apex_acer.algorithms.acer.settings import AcerConfig
from apex_acer.algorithms.algorithm import Action, Agent, LossOutput
from apex_acer.algorithms.samples import Sequences, prepared
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
from apex_acer.networks.memory import State, lstm_shapes
from apex_acer.protocol.specification import EnvironmentSpec

MU = "log_probs"  # the behaviour policy's only part


class AcerAgent(Agent):
    """Samples from the policy's softmax, and records the log-probabilities of all actions."""

    network: ActorCritic

    def __init__(self, config: RunConfig, spec: EnvironmentSpec) -> None:
        super().__init__(config, spec)
        self.network = ActorCritic(config.network, spec)
        self.log_probs = MU
        self.extras = {MU: (spec.num_actions,)}  # of several choices at once, of all combinations
        self.state = lstm_shapes(config.network.lstm)

    def act(
        self, obs: Tensor, state: State, *, greedy: bool, exploration: Tensor, generator: torch.Generator, updates: int
    ) -> Action:
        """Samples from mu = softmax(pi_logits / exploration), or takes its likeliest action if `greedy`."""
        output, state = self.network.step(obs, state)
        log_mu = self.network.joint(output.pi_logits.float() / exploration.unsqueeze(-1)).log_softmax(-1)  # [N, A]
        if greedy:
            action = log_mu.argmax(-1)
        else:
            action = torch.multinomial(log_mu.exp(), 1, generator=generator).squeeze(-1)
        return Action(action, {MU: log_mu}, state)


class Acer(AcerBase):
    """A network with policy and Q heads, and its average."""

    settings_class = AcerConfig
    agent_class = AcerAgent
    settings: AcerConfig
    network: ActorCritic
    average_network: ActorCritic

    def loss(self, samples: Sequences) -> LossOutput:
        """`acer_loss` of a batch of sequences."""
        obs, first = prepared(self.network, samples.obs), samples.first
        output = self.network.unroll(obs, first, samples.state, self.settings.burn_in, samples.fresh)
        output = output._replace(pi_logits=self.network.joint(output.pi_logits))
        with torch.no_grad():
            average = self.average_network.unroll(obs[: -first.shape[1]], first[:-1], samples.state)
            logits = self.network.joint(average.pi_logits)
        return acer_loss(self.settings, samples, output, logits, self.learned(samples))


def acer_loss(
    settings: AcerConfig, samples: Sequences, output: ActorCriticOutput, average_logits: Tensor, mask: Tensor
) -> LossOutput:
    """ACER's loss of a batch, averaged over its unmasked steps after the trust region's projection.

    Args:
        settings: `[algorithm]`.
        samples: the batch; its mask is not used.
        output: the network's outputs `[T+1, B, A]`, with gradient; the last row is only bootstrapped from.
        average_logits: `[T, B, A]` logits of the average policy.
        mask: `[T, B]` bool, false on steps that are not learned from.
    """
    mu, action = samples.extras[MU], samples.action
    targets = acer_targets(
        pi_logits=output.pi_logits,
        q_values=output.q_values,
        mu_log_probs=mu,
        action=action,
        reward=samples.reward,
        discount=samples.discount,
        mask=mask,
    )
    q_values, log_average = output.q_values[:-1], average_logits.log_softmax(-1)
    q_taken = q_values.gather(-1, action.unsqueeze(-1)).squeeze(-1)  # [T, B]
    gradient = acer_policy_gradient(
        pi_logits=output.pi_logits[:-1],
        mu_log_probs=mu,
        action=action,
        q_values=q_values,
        q_ret=targets.q_ret,
        truncation_threshold=settings.truncation_threshold,
        entropy_cost=settings.entropy_cost,
    )
    z = trust_region_projection(gradient, *kl_gradient(targets.log_pi, log_average, settings.trust_region_delta))
    policy_loss = surrogate_loss(output.pi_logits[:-1].softmax(-1), z, samples.importance, mask)
    q_loss, error = squared_error_loss(q_taken, targets.q_ret, samples.importance, mask)
    total = policy_loss + settings.q_cost * q_loss
    metrics = acer_metrics(targets, log_average, (z != gradient).any(-1), mask, settings.truncation_threshold)
    metrics |= {"loss": total.detach(), "policy_loss": policy_loss.detach(), "q_loss": q_loss.detach()}
    priorities = error.abs().sum(0) / mask.sum(0).clamp(min=1)
    return LossOutput(total, metrics, priorities, mask.sum())
