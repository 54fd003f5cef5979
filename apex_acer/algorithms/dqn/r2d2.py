"""R2D2: Ape-X DQN with an LSTM, which learns from overlapping sequences that are stored with their recurrent state.

Kapturowski et al. 2019, Recurrent Experience Replay in Distributed Reinforcement Learning (ICLR).
"""

from __future__ import annotations

import torch
from torch import Tensor

from apex_acer.algorithms.algorithm import LossOutput
from apex_acer.algorithms.dqn.apex_dqn import ApexDqn, EpsilonGreedy, huber_loss
from apex_acer.algorithms.dqn.settings import R2d2Config
from apex_acer.algorithms.samples import Sequences, Transitions, prepared
from apex_acer.config import RunConfig
from apex_acer.functional import bootstrap_value, masked_means, n_step_returns, sequence_priority, sequence_targets
from apex_acer.networks.memory import lstm_shapes
from apex_acer.protocol.specification import EnvironmentSpec


class RecurrentEpsilonGreedy(EpsilonGreedy):
    """An `EpsilonGreedy` agent with an LSTM."""

    settings: R2d2Config

    def __init__(self, config: RunConfig, spec: EnvironmentSpec) -> None:
        super().__init__(config, spec)
        self.state = lstm_shapes(config.network.lstm)

    def priority(self, steps: Transitions) -> Tensor:
        """The priority of each sequence, written at each of its steps, `[k, N]`."""
        error = super().priority(steps)
        return sequence_priority(error, steps.mask).expand_as(error).contiguous()


class R2d2(ApexDqn):
    """A recurrent Q network and its target network, which is copied as in Ape-X DQN."""

    settings_class = R2d2Config
    agent_class = RecurrentEpsilonGreedy
    settings: R2d2Config

    def loss(self, samples: Sequences) -> LossOutput:  # type: ignore[override]  # the agent asks for sequences
        """The Huber loss between Q and the n-step targets of all steps of the sequences but the burn-in, which is masked."""
        settings, mask, first = self.settings, samples.mask, samples.first
        obs = prepared(self.network, samples.obs)
        q_values = self.network.unroll(obs, first, samples.state, settings.burn_in).q_values  # [T+1, B, A]
        q_taken = q_values[:-1].gather(-1, samples.action.unsqueeze(-1)).squeeze(-1)  # [T, B]
        with torch.no_grad():
            evaluated = self.target_network.unroll(obs, first, samples.state).q_values
            value = bootstrap_value(q_values if settings.double else evaluated, evaluated)  # [T+1, B]
            ahead = n_step_returns(
                reward=samples.reward,
                terminated=samples.terminated,
                truncated=samples.last,
                mask=mask,
                gamma=settings.gamma,
                n_steps=settings.n_steps,
            )
            target = sequence_targets(ahead, value, rescaled=settings.value_rescaling)
        loss, error = huber_loss(q_taken, target, samples.importance, mask)
        means = {"td_error": error.abs(), "q_taken": q_taken, "q_target": target, "value": q_values[:-1].amax(-1)}
        metrics = masked_means(means | {"importance": samples.importance.expand_as(error)}, mask)
        priorities = sequence_priority(error, mask)
        return LossOutput(loss, metrics | {"loss": loss.detach(), "q_loss": loss.detach()}, priorities, mask.sum())
