"""What algorithms share that learn from whole segments: their inputs, recurrent state and rewards."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import torch
from torch import Tensor

from apex_acer.algorithms.algorithm import Algorithm
from apex_acer.config import RunConfig, SegmentConfig
from apex_acer.functional import shape_rewards
from apex_acer.networks.frames import stack_planes
from apex_acer.networks.memory import lstm_shapes
from apex_acer.networks.network import Network, to_train
from apex_acer.networks.normalisation import RewardScale
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import Batch, Shapes, Unroll


class Inputs(NamedTuple):
    """What networks compute from."""

    obs: Tensor
    """`[(T+1) * B, *obs_shape]` prepared observations, also the one after the last step."""
    reset: Tensor
    """`[T+1, B]` bool, true if an episode begins there."""


class Segments(Algorithm):
    """A network, and the scale of rewards if they are normalised."""

    settings = SegmentConfig

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None:
        assert isinstance(config.algorithm, SegmentConfig)
        self._stack, self._device, self._shaping = spec.stack, device, config.algorithm
        self.network = to_train(self.build_network(config, spec), config, device)
        self.modules = {"network": self.network}
        self._reward_scale = RewardScale().to(device) if self._shaping.normalise_rewards else None
        if self._reward_scale:
            self.modules["rewards"] = self._reward_scale

    @staticmethod
    def state_shapes(config: RunConfig, spec: EnvironmentSpec) -> Shapes:
        """The hidden and cell state of the LSTM, if there is one."""
        return lstm_shapes(config.network.lstm)

    @staticmethod
    def exploration(config: RunConfig, num: int, actor: int | None = None) -> Tensor:
        """Temperatures of a policy that is sampled from `[num]`: the actor's, or 1 in an evaluation."""
        return torch.full((num,), 1.0 if actor is None else config.actors.temperature(actor))

    def observe(self, unroll: Unroll, source: Hashable) -> None:
        """Updates the statistics of observations and returns, if the configuration asks for them."""
        super().observe(unroll, source)
        self.observe_returns(unroll, source)

    def observe_returns(self, unroll: Unroll, source: Hashable) -> None:
        """Updates the statistics of returns, if the configuration asks for them."""
        if self._reward_scale:
            at_start = unroll.episode_step[self._stack - 1] == 0
            arrays = (unroll.reward, unroll.terminated, unroll.truncated, unroll.mask, at_start)
            reward, terminated, truncated, mask, begins = (torch.from_numpy(a).to(self._device) for a in arrays)
            shaped, ended = self._shape(reward, terminated), terminated | truncated
            self._reward_scale.observe(shaped, ended, mask, begins, self._shaping.gamma, source)

    def statistics(self) -> list[Tensor]:
        """The statistics of observations and returns."""
        return [*self.network.buffers(), *(self._reward_scale.buffers() if self._reward_scale else ())]

    def inputs(self, batch: Batch, *, ahead: bool = True) -> Inputs:
        """The inputs of all networks, prepared once, because their statistics are the same; T rows if not `ahead`."""
        return segment_inputs(self.network, batch, ahead=ahead)

    def rewards(self, batch: Batch) -> Tensor:
        """`[T, B]` shaped rewards, divided by their scale if the configuration asks for it."""
        reward = self._shape(batch.reward, batch.terminated)
        return self._reward_scale(reward) if self._reward_scale else reward

    def _shape(self, reward: Tensor, terminated: Tensor) -> Tensor:
        clip, penalty = self._shaping.reward_clip, self._shaping.terminal_penalty
        return shape_rewards(reward, terminated, clip=clip, penalty=penalty)


def segment_inputs(network: Network, batch: Batch, *, ahead: bool = True) -> Inputs:
    """The inputs of `network`, and of others with its statistics; T rows if not `ahead`."""
    rows = slice(None if ahead else -1)
    planes, episode_step = batch.obs[rows], batch.episode_step[rows]
    obs = stack_planes(planes, episode_step, batch.stack)  # [T+1, B, *obs]
    with torch.no_grad():
        return Inputs(network.prepare(obs.flatten(0, 1)), episode_step[batch.stack - 1 :] == 0)
