"""Samples: what algorithms learn from, made of stored sequences.

Frame stacks are rebuilt, rewards are clipped, penalised and scaled, n-step returns are summed and discounts are 0 where
nothing follows, so that no algorithm knows how experience is stored.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from apex_acer.config import AlgorithmConfig, SequenceConfig
from apex_acer.functional import n_step_return, n_step_returns, shape_rewards
from apex_acer.networks.frames import stack_planes
from apex_acer.networks.network import Network
from apex_acer.networks.normalisation import RewardScale
from apex_acer.protocol.specification import Array
from apex_acer.protocol.unroll import Batch, Unroll, take_rows


@dataclass(frozen=True)
class Sequences:
    """T consecutive steps of B environments, on the learner's device."""

    obs: Tensor
    """`[T+1, B, *obs]` frame stacks, also the one after the last step."""
    first: Tensor
    """`[T+1, B]` bool, whether an episode begins at the observation."""
    action: Tensor
    """`[T, B]` int64 for discrete actions, `[T, B, d]` float32 in [−1, 1] for continuous ones."""
    reward: Tensor
    """`[T, B]` float32, clipped, penalised and scaled as the run asks."""
    discount: Tensor
    """`[T, B]` float32: gamma, or 0 if the step terminated."""
    last: Tensor
    """`[T, B]` bool, whether the step ended an episode, terminated or truncated."""
    mask: Tensor
    """`[T, B]` bool, false on steps that are not learned from, such as the one on which an environment was reset."""
    extras: dict[str, Tensor]
    """`[T, B, …]` what the actor recorded of each step (`Agent.extras`)."""
    state: dict[str, Tensor]
    """`[B, …]` what the policy remembered before the first step (`Agent.state`)."""
    importance: Tensor
    """`[B]` float32, the weight of each sequence in the loss; 1 if replay is uniform."""
    fresh: Tensor
    """`[B]` bool, whether the sequence is learned from for the first time."""
    noise: dict[str, Tensor] = field(default_factory=dict)
    """`[…, B, …]` the random numbers that the loss needs (`Algorithm.noise`)."""
    targets: dict[str, Tensor] = field(default_factory=dict)
    """`[T, B, …]` what an algorithm computed for each step of a whole batch, before it takes steps on parts of it."""

    OF_SEQUENCES: ClassVar = ("state", "importance", "fresh")  # the fields without an axis of time

    @property
    def terminated(self) -> Tensor:
        """`[T, B]` bool, whether nothing follows a step."""
        return self.discount == 0

    def axis(self, name: str) -> int:
        """The axis of a field that counts samples."""
        return 0 if name in self.OF_SEQUENCES else 1

    def steps(self, index: Tensor) -> Sequences:
        """The steps `index` `[n]`, counted as t * B + b, as n sequences of one step, without recurrent state."""
        num = self.mask.shape[1]
        both = torch.stack([index, index + num])  # [2, n] rows of the observations before and after each step

        def read(name: str, value: Tensor) -> Tensor:
            if name in self.OF_SEQUENCES:
                return value[index % num]
            return _take(value, both if name in ("obs", "first") else index.unsqueeze(0))

        return Sequences(**_each(replace(self, state={}, noise={}), read))


@dataclass(frozen=True)
class Transitions:
    """B steps with their n-step returns, on the learner's device; first priorities are computed from `[T, N]` of them."""

    obs: Tensor
    """`[B, *obs]` frame stacks."""
    action: Tensor
    """`[B]` int64 for discrete actions, `[B, d]` float32 in [−1, 1] for continuous ones."""
    reward: Tensor
    """`[B]` Σ γ^i r_i over n steps, fewer if the episode or its sequence ends earlier."""
    discount: Tensor
    """`[B]` γ^m of the value m steps later, or 0 if the last step terminated."""
    next_obs: Tensor
    """`[B, *obs]` the frame stacks m steps later."""
    mask: Tensor
    """`[B]` bool, false on steps that are not learned from."""
    importance: Tensor
    """`[B]` float32, the weight of each transition in the loss; 1 if replay is uniform."""
    extras: dict[str, Tensor]
    """`[B, …]` what the actor recorded at `obs`."""
    next_extras: dict[str, Tensor] = field(default_factory=dict)
    """`[B, …]` what it recorded at `next_obs`; only for first priorities."""
    noise: dict[str, Tensor] = field(default_factory=dict)
    """`[…, B, …]` the random numbers that the loss needs (`Algorithm.noise`)."""

    def axis(self, name: str) -> int:
        """The axis of a field that counts samples."""
        return 1 if name == "noise" else 0


Samples = Sequences | Transitions


class SampleMaker:
    """Makes the samples that an algorithm's `settings` ask for, with rewards as they ask."""

    def __init__(self, settings: AlgorithmConfig) -> None:
        self._settings = settings
        scaled = isinstance(settings, SequenceConfig) and settings.normalise_rewards
        self.scale = RewardScale() if scaled else None
        """The running scale of rewards, which `observe` updates; None: rewards are not scaled."""

    def make(self, batch: Batch) -> Samples:
        """The samples of gathered `batch`."""
        return self._transitions(batch) if self._settings.sampling.n_steps else self._sequences(batch)

    def observe(self, unroll: Unroll, source: Hashable, stack: int, device: torch.device) -> None:
        """Updates the scale of rewards with an unroll that continues the last one of its `source`."""
        if self.scale:
            at_start = unroll.episode_step[stack - 1] == 0
            arrays = (unroll.reward, unroll.terminated, unroll.truncated, unroll.mask, at_start)
            reward, terminated, truncated, mask, begins = (torch.from_numpy(array).to(device) for array in arrays)
            shaped, ended = self._shaped(reward, terminated), terminated | truncated
            self.scale.observe(shaped, ended, mask, begins, self._settings.gamma, source)

    def priority_steps(self, unroll: Unroll, ahead: Mapping[str, Array]) -> Transitions:
        """All steps `[k, N]` of an unroll as an actor knows them, from which it computes first priorities.

        `ahead` `[N, …]` are the extras of the step after the unroll. There are no observations.
        """
        arrays = (unroll.reward, unroll.terminated, unroll.truncated, unroll.mask)
        reward, terminated, truncated, mask = (torch.from_numpy(array) for array in arrays)
        flags = {"terminated": terminated, "truncated": truncated, "mask": mask}
        shaped, settings = self._shaped(reward, terminated), self._settings
        n_steps = getattr(settings, "n_steps", 1)
        returns = n_step_returns(reward=shaped, **flags, gamma=settings.gamma, n_steps=n_steps)
        after = torch.arange(len(mask)).unsqueeze(-1) + returns.length  # [k, N]
        extras = unroll.extras
        both = {name: torch.from_numpy(np.concatenate([extras[name], ahead[name][None]])) for name in extras}
        nothing = torch.empty(0)
        return Transitions(
            obs=nothing,
            action=torch.from_numpy(unroll.action),
            reward=returns.reward,
            discount=returns.discount,
            next_obs=nothing,
            mask=mask,
            importance=nothing,
            extras={name: value[:-1] for name, value in both.items()},
            next_extras={name: _at(value, after) for name, value in both.items()},
        )

    def _sequences(self, batch: Batch) -> Sequences:
        gamma, shaped = self._settings.gamma, self._shaped(batch.reward, batch.terminated)
        return Sequences(
            obs=stack_planes(batch.obs, batch.episode_step, batch.stack),
            first=batch.episode_step[batch.stack - 1 :] == 0,
            action=batch.action,
            reward=self.scale(shaped) if self.scale else shaped,
            discount=torch.full_like(shaped, gamma).masked_fill_(batch.terminated, 0.0),
            last=batch.terminated | batch.truncated,
            mask=batch.mask,
            extras=batch.extras,
            state=batch.state,
            importance=batch.importance,
            fresh=batch.fresh,
        )

    def _transitions(self, batch: Batch) -> Transitions:
        stack, shaped = batch.stack, self._shaped(batch.reward, batch.terminated)
        flags = {"terminated": batch.terminated, "truncated": batch.truncated, "mask": batch.mask}
        returns = n_step_return(reward=shaped, **flags, gamma=self._settings.gamma)
        planes = torch.arange(stack, device=shaped.device).unsqueeze(-1) + returns.length  # [S, B]
        rows = planes * planes.shape[1] + torch.arange(planes.shape[1], device=shaped.device)
        after = stack_planes(take_rows(batch.obs, rows), take_rows(batch.episode_step, rows), stack)
        return Transitions(
            obs=stack_planes(batch.obs[:stack], batch.episode_step[:stack], stack)[0],
            action=batch.action[0],
            reward=returns.reward,
            discount=returns.discount,
            next_obs=after[0],
            mask=batch.mask[0],
            importance=batch.importance,
            extras={name: value[0] for name, value in batch.extras.items()},
        )

    def _shaped(self, reward: Tensor, terminated: Tensor) -> Tensor:
        clip, penalty = self._settings.reward_clip, self._settings.terminal_penalty
        return shape_rewards(reward, terminated, clip=clip, penalty=penalty)


def split(samples: Samples, num_parts: int) -> list[Samples]:
    """Views of `samples` in nearly equal numbers; there may be fewer than `num_parts`."""
    count = len(samples.importance.chunk(num_parts))
    parts = [
        _each(samples, lambda name, value, i=i: value.chunk(num_parts, samples.axis(name))[i]) for i in range(count)
    ]
    return [type(samples)(**part) for part in parts]


def columns(samples: Sequences, index: Tensor) -> Sequences:
    """The sequences `index` `[n]`."""
    return Sequences(**_each(samples, lambda name, value: value.index_select(samples.axis(name), index)))


def prepared(network: Network, obs: Tensor) -> Tensor:
    """Observations `[L, B, *obs]` as the inputs `[L * B, *input]` of `network`, and of others that share its statistics."""
    with torch.no_grad():
        return network.prepare(_inside_out(obs).flatten(0, 1).movedim(-1, 1) if obs.ndim == 5 else obs.flatten(0, 1))


def _inside_out(stacks: Tensor) -> Tensor:
    """Frame stacks of images `[L, B, C, H, W]` as they are in memory, `[L, B, H, W, C]`, which a copy must not change."""
    return stacks.movedim(2, -1)


def _take(field: Tensor, rows: Tensor) -> Tensor:
    """What `field` `[m, n, …]` has at `rows` `[…]`, counted as i * n + j."""
    return take_rows(_inside_out(field), rows).movedim(-1, 2) if field.ndim == 5 else take_rows(field, rows)


def _at(values: Tensor, rows: Tensor) -> Tensor:
    """What `values` `[k+1, N, …]` has at `rows` `[k, N]`."""
    return take_rows(values, rows * rows.shape[1] + torch.arange(rows.shape[1]))


def _each(samples: Samples, change: Any) -> dict[str, Any]:
    """The fields with `change(name, tensor)` applied to every tensor."""
    return {
        name: {key: change(name, tensor) for key, tensor in value.items()}
        if isinstance(value, dict)
        else change(name, value)
        for name, value in vars(samples).items()
    }
