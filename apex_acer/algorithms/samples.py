"""The samples of a loss, made of stored sequences: frame stacks, shaped rewards, n-step returns and discounts."""

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
    """`[T+1, B, *obs]` frame stacks; the last row follows the last step. On-policy algorithms `prepare` them once for all
    their passes, and leave the last row out of a loss that does not need it."""
    first: Tensor
    """`[T+1, B]` bool, true if an episode begins at the observation; as many rows as `obs`."""
    action: Tensor
    """`[T, B]` int64 for discrete actions, `[T, B, d]` float32 in [−1, 1] for continuous ones, `[T, B, 1 + d]` for both."""
    reward: Tensor
    """`[T, B]` float32, clipped, penalised and scaled as the settings say."""
    discount: Tensor
    """`[T, B]` float32: gamma, or 0 if the step terminated."""
    last: Tensor
    """`[T, B]` bool, true if the step terminated or truncated an episode."""
    mask: Tensor
    """`[T, B]` bool, false on steps that are not learned from, such as autoreset steps."""
    extras: dict[str, Tensor]
    """`[T, B, …]` the actor's records of each step (`Agent.extras`)."""
    state: dict[str, Tensor]
    """`[B, …]` the recurrent state before the first step (`Agent.state`)."""
    importance: Tensor
    """`[B]` float32, the weight of each sequence in the loss; 1 if replay is uniform."""
    fresh: Tensor
    """`[B]` bool, true if the sequence is not replayed."""
    noise: dict[str, Tensor] = field(default_factory=dict)
    """`[…, B, …]` the loss's random numbers (`Algorithm.noise`)."""
    targets: dict[str, Tensor] = field(default_factory=dict)
    """`[T, B, …]` constants of the loss that `Algorithm.update` computes for a whole batch, such as advantages."""

    WITHOUT_TIME: ClassVar = ("state", "importance", "fresh")  # fields without an axis of time

    @property
    def terminated(self) -> Tensor:
        """`[T, B]` bool."""
        return self.discount == 0

    @property
    def stays(self) -> Tensor:
        """`[T, B]` bool, true if the observation after the step is of the same episode."""
        return ~self.first[1:]

    def axis(self, name: str) -> int:
        """The axis of a field that counts samples."""
        return 0 if name in self.WITHOUT_TIME else 1

    def select(self, index: Tensor) -> Sequences:
        """The sequences `index` `[n]`."""
        return Sequences(**_each(self, lambda name, value: value.index_select(self.axis(name), index)))

    def steps(self, index: Tensor) -> Sequences:
        """The steps `index` `[n]`, counted as t * B + b, as n sequences of one step, without recurrent state."""
        length, num = self.mask.shape
        both = torch.stack([index, index + num])  # [2, n] rows of the observations before and after each step

        def read(name: str, value: Tensor) -> Tensor:
            if name in self.WITHOUT_TIME:
                return value[index % num]
            return _take(value, both[: 1 + len(value) - length])

        return Sequences(**_each(replace(self, state={}, noise={}), read))


@dataclass(frozen=True)
class Transitions:
    """B steps with their n-step returns, on the learner's device; for first priorities `[T, N]` steps of an unroll."""

    obs: Tensor
    """`[B, *obs]` frame stacks."""
    action: Tensor
    """`[B]` int64 for discrete actions, `[B, d]` float32 in [−1, 1] for continuous ones."""
    reward: Tensor
    """`[B]` Σ γ^i r_i over m steps: n, or fewer if the episode or the sequence ends earlier."""
    discount: Tensor
    """`[B]` γ^m, or 0 if the last step terminated."""
    next_obs: Tensor
    """`[B, *obs]` frame stacks m steps later."""
    mask: Tensor
    """`[B]` bool, false on steps that are not learned from."""
    importance: Tensor
    """`[B]` float32, the weight of each transition in the loss; 1 if replay is uniform."""
    extras: dict[str, Tensor]
    """`[B, …]` the actor's records at `obs` (`Agent.extras`)."""
    next_extras: dict[str, Tensor] = field(default_factory=dict)
    """`[B, …]` the actor's records at `next_obs`; only for first priorities."""
    noise: dict[str, Tensor] = field(default_factory=dict)
    """`[…, B, …]` the loss's random numbers (`Algorithm.noise`)."""

    def axis(self, name: str) -> int:
        """The axis of a field that counts samples."""
        return 1 if name == "noise" else 0


Samples = Sequences | Transitions


class SampleMaker:
    """Makes the samples that an algorithm's `settings` ask for."""

    def __init__(self, settings: AlgorithmConfig) -> None:
        self._settings = settings
        scaled = isinstance(settings, SequenceConfig) and settings.normalise_rewards
        self.scale = RewardScale() if scaled else None
        """The running scale of rewards; None: rewards are not scaled."""

    def make(self, batch: Batch) -> Samples:
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
        """All steps `[k, N]` of an unroll, without observations, for first priorities in an actor.

        `ahead` `[N, …]` are the extras of the step after the unroll.
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
    """At most `num_parts` views of `samples` of nearly equal size."""

    def part(index: int) -> Samples:
        chunks = _each(samples, lambda name, value: value.chunk(num_parts, samples.axis(name))[index])
        return type(samples)(**chunks)

    return [part(index) for index in range(len(samples.importance.chunk(num_parts)))]


def prepared(network: Network[Any], obs: Tensor) -> Tensor:
    """Observations `[L, B, *obs]`, `prepare`d by `network` as `[L * B, *input]`."""
    with torch.no_grad():
        return network.prepare(flat(obs))


def with_prepared(network: Network[Any], samples: Sequences) -> Sequences:
    """`samples` whose observations are `prepare`d by `network`, `[T+1, B, *input]`."""
    inputs = prepared(network, samples.obs)
    return replace(samples, obs=inputs.view(*samples.first.shape, *inputs.shape[1:]))


def without_last(samples: Sequences) -> Sequences:
    """`samples` without the observations after the last step."""
    return replace(samples, obs=samples.obs[:-1], first=samples.first[:-1])


def flat(obs: Tensor) -> Tensor:
    """Observations `[L, B, …]` as `[L * B, …]`, of images with channels innermost in memory as before."""
    return _inside_out(obs).flatten(0, 1).movedim(-1, 1) if obs.ndim == 5 else obs.flatten(0, 1)


def _inside_out(stacks: Tensor) -> Tensor:
    """Frame stacks of images `[L, B, C, H, W]` as they are in memory, `[L, B, H, W, C]`; copies must keep this order."""
    return stacks.movedim(2, -1)


def _take(field: Tensor, rows: Tensor) -> Tensor:
    """The rows of `field` `[m, n, …]` at `rows` `[…]`, counted as i * n + j."""
    return take_rows(_inside_out(field), rows).movedim(-1, 2) if field.ndim == 5 else take_rows(field, rows)


def _at(values: Tensor, rows: Tensor) -> Tensor:
    """`values` `[k+1, N, …]` at the steps `rows` `[k, N]`."""
    return take_rows(values, rows * rows.shape[1] + torch.arange(rows.shape[1]))


def _each(samples: Samples, change: Any) -> dict[str, Any]:
    """The fields with `change(name, tensor)` applied to every tensor."""
    return {
        name: {key: change(name, tensor) for key, tensor in value.items()}
        if isinstance(value, dict)
        else change(name, value)
        for name, value in vars(samples).items()
    }
