"""The task of simulated runs: an environment whose observations number its steps, and an algorithm with one parameter."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor, nn

from apex_acer.algorithms.algorithm import Action, Agent, Algorithm, LossOutput
from apex_acer.algorithms.samples import Sequences
from apex_acer.config import AlgorithmConfig, RunConfig
from apex_acer.networks.network import Network, State
from apex_acer.protocol.specification import EnvironmentSpec

ID = "tests.simulation.task:Numbered-v0"
NAME = "tests.simulation.task:Still"
EPISODE = 7
numbers: Iterator[int] = itertools.count()


def begin() -> None:
    """Numbers environments from 0 again."""
    global numbers
    numbers = itertools.count()


class Numbered(VectorEnv[Any, Any, Any]):
    """Environments that observe their own number, which no other has, and how many steps they have made.

    Episodes have EPISODE steps; every second one is truncated.
    """

    def __init__(self, num_envs: int = 1) -> None:
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space = Box(0, 2**24, (2,))
        self.single_action_space = Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._number = np.array([next(numbers) for _ in range(num_envs)])
        self._made = np.zeros(num_envs, int)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._made[:] = 0
        return self._observation(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self._made += 1  # the step after an episode's end resets
        ended, odd = self._made % (EPISODE + 1) == EPISODE, self._made // (EPISODE + 1) % 2 == 1
        return self._observation(), np.ones(self.num_envs), ended & ~odd, ended & odd, {}

    def _observation(self) -> Any:
        return np.stack([self._number, self._made], -1).astype(np.float32)


gymnasium.register("Numbered-v0", vector_entry_point=f"{__name__}:Numbered")


class Output(NamedTuple):
    """The parameter for each observation `[B]`."""

    value: Tensor


class Parameter(Network[Output]):
    """One number."""

    def __init__(self, config: RunConfig, spec: EnvironmentSpec) -> None:
        super().__init__(config.network, spec)
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, obs: Tensor) -> Output:
        return Output(self.weight.expand(len(obs)))


class StillAgent(Agent):
    """Takes action 0."""

    def __init__(self, config: RunConfig, spec: EnvironmentSpec) -> None:
        super().__init__(config, spec)
        self.network = Parameter(config, spec)

    def act(
        self, obs: Tensor, state: State, *, greedy: bool, exploration: Tensor, generator: torch.Generator, updates: int
    ) -> Action:
        return Action(torch.zeros(len(obs), dtype=torch.int64), {}, state)


class Still(Algorithm):
    """Learns 0, and raises if a step's observation and the one after it are not of one environment and one step apart."""

    settings_class, agent_class = AlgorithmConfig, StillAgent

    network: Parameter

    def loss(self, samples: Sequences) -> LossOutput:
        obs, mask = samples.obs, samples.mask  # [T+1, B, 2], [T, B]
        follows = obs[1:] - obs[:-1] == torch.tensor([0.0, 1.0])
        assert follows[mask].all(), "a step leads to an observation that does not follow"
        loss = self.network.weight.square()
        return LossOutput(loss, {"loss": loss.detach()}, torch.ones(obs.shape[1]), mask.sum())
