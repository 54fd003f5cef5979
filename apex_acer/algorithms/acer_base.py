"""What ACER for discrete and for continuous actions share: the average network, recurrent state and rewards."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from apex_acer.algorithms.algorithm import Algorithm, Feeding
from apex_acer.config import AcerBaseConfig, RunConfig
from apex_acer.functional import shape_rewards
from apex_acer.networks.frames import stack_planes
from apex_acer.networks.normalisation import RewardScale
from apex_acer.networks.torsos import to_train
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import Batch, Shapes, Unroll


class Inputs(NamedTuple):
    """What both networks compute from."""

    obs: Tensor
    """`[(T+1) * B, *obs_shape]` prepared observations."""
    reset: Tensor
    """`[T+1, B]` bool, true if an episode begins there."""


class AcerBase(Algorithm):
    """A network, and the average network to which the trust region keeps its policy close."""

    settings = AcerBaseConfig

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None:
        self._stack, self._device = spec.stack, device
        self.network = to_train(self.build_network(config, spec), config, device)
        self._common = settings(config)
        self._reward_scale = RewardScale().to(device) if self._common.normalise_rewards else None
        self.average_network = copy.deepcopy(self.network).requires_grad_(False)
        self.modules = {"network": self.network, "average": self.average_network}
        if self._reward_scale:
            self.modules["rewards"] = self._reward_scale

    @staticmethod
    def state_shapes(config: RunConfig, spec: EnvironmentSpec) -> Shapes:
        """The hidden and cell state of the LSTM, if there is one."""
        return {"hidden": (config.network.lstm,), "cell": (config.network.lstm,)} if config.network.lstm else {}

    @staticmethod
    def feeding(config: RunConfig) -> Feeding:
        """Whole segments: each is trained on once as it arrives, and is worth Poisson(replay ratio) replays."""
        return Feeding(fresh=True, draw="poisson")

    def observe(self, unroll: Unroll, source: Hashable) -> None:
        """Updates the statistics of observations and returns, if the configuration asks for them."""
        self.network.observe(unroll)
        if self._reward_scale:
            at_start = unroll.episode_step[self._stack - 1] == 0
            arrays = (unroll.reward, unroll.terminated, unroll.truncated, unroll.mask, at_start)
            reward, terminated, truncated, mask, begins = (torch.from_numpy(a).to(self._device) for a in arrays)
            shaped, ended = self._shape(reward, terminated), terminated | truncated
            self._reward_scale.observe(shaped, ended, mask, begins, self._common.gamma, source)

    def statistics(self) -> list[Tensor]:
        """The statistics of observations and returns."""
        return [*self.network.buffers(), *(self._reward_scale.buffers() if self._reward_scale else ())]

    def inputs(self, batch: Batch) -> Inputs:
        """The inputs of both networks, prepared once, because their statistics are the same."""
        obs = stack_planes(batch.obs, batch.episode_step, self._stack)  # [T+1, B, *obs]
        with torch.no_grad():
            return Inputs(self.network.prepare(obs.flatten(0, 1)), batch.episode_step[self._stack - 1 :] == 0)

    def rewards(self, batch: Batch) -> Tensor:
        """`[T, B]` shaped rewards, divided by their scale if the configuration asks for it."""
        reward = self._shape(batch.reward, batch.terminated)
        return self._reward_scale(reward) if self._reward_scale else reward

    def learned(self, batch: Batch) -> Tensor:
        """The mask without the burn-in of replayed segments, `[T, B]`."""
        burn_in, mask = self._common.burn_in, batch.mask
        if not (burn_in and self.network.lstm):
            return mask
        late = torch.arange(len(mask), device=mask.device) >= burn_in
        return mask & (late.unsqueeze(-1) | batch.fresh)

    def _shape(self, reward: Tensor, terminated: Tensor) -> Tensor:
        clip, penalty = self._common.reward_clip, self._common.terminal_penalty
        return shape_rewards(reward, terminated, clip=clip, penalty=penalty)

    def after_step(self, metrics: Mapping[str, Tensor], updates: int) -> None:
        """Moves the average network: θ_a ← α θ_a + (1 − α) θ; its buffers are copied."""
        with torch.no_grad():
            average: list[Tensor] = list(self.average_network.parameters())
            newest: list[Tensor] = list(self.network.parameters())
            torch._foreach_lerp_(average, newest, 1 - self._common.ema_decay)
            for old, new in zip(self.average_network.buffers(), self.network.buffers(), strict=True):
                old.copy_(new)


def settings(config: RunConfig) -> AcerBaseConfig:
    """The `[algorithm]` section of a run of ACER."""
    assert isinstance(config.algorithm, AcerBaseConfig)
    return config.algorithm
