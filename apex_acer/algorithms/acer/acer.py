"""ACER: off-policy actor-critic with Retrace, truncated importance weights and a trust region (arXiv 1611.01224)."""

from __future__ import annotations

import copy
from collections.abc import Collection

import torch
from torch import Tensor

from apex_acer.algorithms.acer.settings import AcerBaseConfig, AcerConfig
from apex_acer.algorithms.algorithm import Action, Agent, Algorithm, LossOutput, polyak_update_
from apex_acer.algorithms.samples import Sequences, prepared
from apex_acer.config import RunConfig
from apex_acer.functional import (
    acer_metrics,
    acer_policy_gradient,
    acer_targets,
    kl_gradient,
    masked_mean,
    squared_error_loss,
    surrogate_loss,
    trust_region_projection,
)
from apex_acer.networks.discrete import ActorCritic, ActorCriticOutput
from apex_acer.networks.memory import State, lstm_shapes
from apex_acer.networks.stochastic_dueling import StochasticDueling
from apex_acer.protocol.specification import EnvironmentSpec

MU = "log_probs"  # the behaviour policy, in an unroll's extras


class AcerAgent(Agent):
    """Samples from the policy's softmax, and records the log-probabilities of all joint actions."""

    network: ActorCritic

    def __init__(self, config: RunConfig, spec: EnvironmentSpec) -> None:
        super().__init__(config, spec)
        self.network = ActorCritic(config.network, spec)
        self.log_probs = MU
        self.extras = {MU: (spec.num_actions,)}
        self.state = lstm_shapes(config.network.lstm)

    def act(
        self, obs: Tensor, state: State, *, greedy: bool, exploration: Tensor, generator: torch.Generator, updates: int
    ) -> Action:
        """Samples from μ = softmax(pi_logits / temperature), or takes its likeliest action if `greedy`."""
        output, state = self.network.step(obs, state)
        log_mu = self.network.joint(output.pi_logits.float() / exploration.unsqueeze(-1)).log_softmax(-1)  # [N, A]
        if greedy:
            action = log_mu.argmax(-1)
        else:
            action = torch.multinomial(log_mu.exp(), 1, generator=generator).squeeze(-1)
        return Action(action, {MU: log_mu}, state)


class AcerBase(Algorithm):
    """A network, and the average network to which the trust region keeps its policy close."""

    settings: AcerBaseConfig
    network: ActorCritic | StochasticDueling

    def __init__(self, agent: Agent, device: torch.device) -> None:
        super().__init__(agent, device)
        self.average_network = copy.deepcopy(self.network).requires_grad_(False)
        self.modules["average"] = self.average_network

    def learned(self, samples: Sequences) -> Tensor:
        """The mask without the burn-in of replayed sequences, `[T, B]`."""
        burn_in, mask = self.settings.burn_in, samples.mask
        if not (burn_in and self.network.lstm):
            return mask
        late = torch.arange(len(mask), device=mask.device) >= burn_in
        return mask & (late.unsqueeze(-1) | samples.fresh)

    def after_step(self, updates: int, stepped: Collection[str]) -> None:
        """Moves the average network: θ_a ← α θ_a + (1 − α) θ; its buffers are copied."""
        polyak_update_(self.average_network, self.network, self.settings.ema_decay)
        for old, new in zip(self.average_network.buffers(), self.network.buffers(), strict=True):
            old.copy_(new)


class Acer(AcerBase):
    """ACER for discrete actions."""

    settings_class = AcerConfig
    agent_class = AcerAgent
    settings: AcerConfig
    network: ActorCritic
    average_network: ActorCritic

    def loss(self, samples: Sequences) -> LossOutput:
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
    """The loss of a batch, averaged over the unmasked steps after the trust region's projection.

    `output` `[T+1, B, A]` of the network has gradient; its last row is only bootstrapped from. `average_logits` `[T, B, A]`
    are the average policy's, and `mask` `[T, B]` bool replaces the mask of `samples`.
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
    pi_logits, q_values, log_average = output.pi_logits[:-1], output.q_values[:-1], average_logits.log_softmax(-1)
    q_taken = q_values.gather(-1, action.unsqueeze(-1)).squeeze(-1)  # [T, B]
    gradient = acer_policy_gradient(
        pi_logits=pi_logits,
        mu_log_probs=mu,
        action=action,
        q_values=q_values,
        q_ret=targets.q_ret,
        truncation_threshold=settings.truncation_threshold,
        entropy_cost=settings.entropy_cost,
    )
    z = trust_region_projection(gradient, *kl_gradient(targets.log_pi, log_average, settings.trust_region_delta))
    policy_loss = surrogate_loss(pi_logits.softmax(-1), z, samples.importance, mask)
    q_loss, error = squared_error_loss(q_taken, targets.q_ret, samples.importance, mask)
    total = policy_loss + settings.q_cost * q_loss
    metrics = acer_metrics(targets, log_average, (z != gradient).any(-1), mask, settings.truncation_threshold)
    metrics |= {"loss": total.detach(), "policy_loss": policy_loss.detach(), "q_loss": q_loss.detach()}
    return LossOutput(total, metrics, masked_mean(error.abs(), mask, 0), mask.sum())
