"""R2D2: Ape-X DQN with an LSTM, which learns from overlapping sequences that are stored with their recurrent state.

Kapturowski et al. 2019, Recurrent Experience Replay in Distributed Reinforcement Learning (ICLR).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable

import torch
from torch import nn

from apex_acer.algorithms.algorithm import Feeding, LossOutput
from apex_acer.algorithms.dqn.apex_dqn import ApexDqn, first_priorities
from apex_acer.algorithms.dqn.settings import R2d2Config
from apex_acer.algorithms.segments import segment_inputs
from apex_acer.algorithms.windows import shaped_returns
from apex_acer.config import RunConfig
from apex_acer.functional import bootstrap_value, masked_means, sequence_priority, sequence_targets
from apex_acer.networks.discrete import QNetwork
from apex_acer.networks.memory import lstm_shapes
from apex_acer.protocol.specification import Array, EnvironmentSpec
from apex_acer.protocol.unroll import PRIORITY, Batch, Shapes, Unroll


class R2d2(ApexDqn):
    """A recurrent Q network and its target network; actors explore and the target is copied as in Ape-X DQN."""

    settings = R2d2Config

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None:
        super().__init__(config, spec, device)
        self._burn_in = settings(config).burn_in

    @staticmethod
    def build_network(config: RunConfig, spec: EnvironmentSpec) -> QNetwork:
        """A `QNetwork` with an LSTM."""
        return QNetwork(config.network, spec, is_dueling=settings(config).dueling)

    @staticmethod
    def state_shapes(config: RunConfig, spec: EnvironmentSpec) -> Shapes:
        """The hidden and cell state of the LSTM."""
        return lstm_shapes(config.network.lstm)

    @staticmethod
    def complete(config: RunConfig, unroll: Unroll, ahead: dict[str, Array]) -> Unroll:
        """Replaces the Q values by the priority of each sequence, written at each of its steps."""
        if not ahead:
            return dataclasses.replace(unroll, behaviour={})
        error, mask = torch.from_numpy(first_priorities(config, unroll, ahead)), torch.from_numpy(unroll.mask)
        priority = sequence_priority(error, mask).expand_as(error).contiguous()
        return dataclasses.replace(unroll, behaviour={PRIORITY: priority.numpy()})

    @staticmethod
    def feeding(config: RunConfig) -> Feeding:
        """Only replay: whole segments, each behind the last `burn_in` steps of the one before."""
        return Feeding(fresh=False, overlap=settings(config).burn_in)

    def observe(self, unroll: Unroll, source: Hashable) -> None:
        """Updates the statistics of observations, if the network has any, with each of them once."""
        self.network.observe(torch.from_numpy(unroll.obs[-self._config.unroll_length :]))

    def loss(self, batch: Batch, updates: int) -> LossOutput:
        """The Huber loss between Q and the n-step targets of all steps of the sequences but the burn-in, which is masked."""
        given, mask = self._config, batch.mask
        obs, reset = segment_inputs(self.network, batch)
        q_values = self.network.unroll(obs, reset, batch.state, self._burn_in).q_values  # [T+1, B, A]
        q_taken = q_values[:-1].gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)  # [T, B]
        with torch.no_grad():
            judge = self.target_network.unroll(obs, reset, batch.state).q_values
            value = bootstrap_value(q_values if given.double else judge, judge)  # [T+1, B]
            ahead = shaped_returns(given, batch.reward, batch.terminated, batch.truncated, mask)
            target = sequence_targets(ahead, value, rescaled=given.value_rescaling)
        error = torch.where(mask, target - q_taken, 0.0)
        huber = nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none")
        loss = (batch.importance * huber).sum() / mask.sum().clamp(min=1)
        samples = {
            "td_error": error.detach().abs(),
            "q_taken": q_taken,
            "q_target": target,
            "value": q_values[:-1].amax(-1),
            "importance": batch.importance.expand_as(error),
        }
        metrics = masked_means(samples, mask) | {"loss": loss.detach(), "q_loss": loss.detach()}
        return LossOutput(loss, metrics, sequence_priority(error.detach(), mask), mask.sum())


def settings(config: RunConfig) -> R2d2Config:
    """The `[algorithm]` section of a run of R2D2."""
    assert isinstance(config.algorithm, R2d2Config)
    return config.algorithm
