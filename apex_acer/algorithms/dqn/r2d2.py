"""R2D2: Ape-X DQN with an LSTM, learning from overlapping sequences stored with their recurrent state.

Kapturowski et al. 2019, Recurrent Experience Replay in Distributed Reinforcement Learning (ICLR).
"""

from __future__ import annotations

import torch
from torch import Tensor

from apex_acer.algorithms.algorithm import LossOutput
from apex_acer.algorithms.dqn.apex_dqn import ApexDqn, ApexDqnAgent, q_loss
from apex_acer.algorithms.dqn.settings import R2d2Config
from apex_acer.algorithms.samples import Sequences, Transitions, prepared
from apex_acer.functional import bootstrap_value, n_step_returns, sequence_priority, sequence_targets


class R2d2Agent(ApexDqnAgent):
    """An ε-greedy policy whose priorities are of sequences."""

    def priority(self, steps: Transitions) -> Tensor:
        """The priority of each sequence, repeated for each of its steps, `[k, N]`."""
        error = super().priority(steps)
        return sequence_priority(error, steps.mask).expand_as(error).contiguous()


class R2d2(ApexDqn):
    """A recurrent Q network and its target network."""

    settings_class = R2d2Config
    agent_class = R2d2Agent
    settings: R2d2Config

    def loss(self, samples: Sequences) -> LossOutput:  # type: ignore[override]  # the agent asks for sequences
        """Huber loss of Q and the n-step targets of all steps after the burn-in, which is masked."""
        settings, mask, first = self.settings, samples.mask, samples.first
        obs = prepared(self.network, samples.obs)
        q_values = self.network.unroll(obs, first, samples.state, settings.burn_in).q_values  # [T+1, B, A]
        q_taken = q_values[:-1].gather(-1, samples.action.unsqueeze(-1)).squeeze(-1)  # [T, B]
        with torch.no_grad():
            evaluated = self.target_network.unroll(obs, first, samples.state).q_values
            value = bootstrap_value(q_values if settings.double else evaluated, evaluated)  # [T+1, B]
            returns = n_step_returns(
                reward=samples.reward,
                terminated=samples.terminated,
                truncated=samples.last,
                mask=mask,
                gamma=settings.gamma,
                n_steps=settings.n_steps,
            )
            target = sequence_targets(returns, value, rescaled=settings.value_rescaling)
        loss, error, metrics = q_loss(q_values[:-1], q_taken, target, samples.importance, mask)
        return LossOutput(loss, metrics, sequence_priority(error, mask), mask.sum())
