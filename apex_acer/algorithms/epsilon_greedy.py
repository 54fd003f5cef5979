"""The ε-greedy agent that Ape-X DQN, R2D2 and PQN share."""

from __future__ import annotations

import torch
from torch import Tensor

from apex_acer.algorithms.algorithm import Action, Agent
from apex_acer.config import RunConfig
from apex_acer.functional import random_legal
from apex_acer.networks.discrete import QNetwork
from apex_acer.networks.memory import State, lstm_shapes
from apex_acer.protocol.specification import EnvironmentSpec

Q_VALUES = "q_values"  # recorded for first priorities, not sent


class EpsilonGreedy(Agent):
    """Takes the action of the highest Q, or a random legal one; `exploration` of a subclass is the probability ε."""

    network: QNetwork

    def __init__(self, config: RunConfig, spec: EnvironmentSpec) -> None:
        super().__init__(config, spec)
        self.network = QNetwork(config.network, spec, is_dueling=self.is_dueling, num_quantiles=self.num_quantiles)
        self.state = lstm_shapes(config.network.lstm)

    @property
    def is_dueling(self) -> bool:
        """Whether Q is computed from a value and advantages."""
        return False

    @property
    def num_quantiles(self) -> int:
        """Number of quantiles of each action's return that the network gives."""
        return 1

    def act(
        self, obs: Tensor, state: State, *, greedy: bool, exploration: Tensor, generator: torch.Generator, updates: int
    ) -> Action:
        """Takes the action of the highest Q, or unless `greedy` with probability ε a random legal one."""
        output, state = self.network.step(obs, state)
        q_values = output.q_values.float()  # [N, A]
        action = q_values.argmax(-1)
        if not greedy:
            chance, choice = torch.rand(2, len(action), generator=generator, device=obs.device)
            action = torch.where(chance < exploration, random_legal(q_values, choice), action)
        return Action(action, {Q_VALUES: q_values}, state)
