"""What algorithms share that learn from windows of n steps of replay: the return, and the observations at both ends."""

from __future__ import annotations

import torch
from torch import Tensor

from apex_acer.config import AlgorithmConfig
from apex_acer.functional import NStep, n_step_return, shape_rewards
from apex_acer.networks.frames import stack_planes
from apex_acer.protocol.unroll import Batch


def shaped_return(given: AlgorithmConfig, reward: Tensor, terminated: Tensor, truncated: Tensor, mask: Tensor) -> NStep:
    """The n-step return of windows `[n, ...]`, with rewards shaped by the run's settings."""
    shaped = shape_rewards(reward, terminated, clip=given.reward_clip, penalty=given.terminal_penalty)
    return n_step_return(reward=shaped, terminated=terminated, truncated=truncated, mask=mask, gamma=given.gamma)


def window_ends(batch: Batch, length: Tensor, stack: int) -> tuple[Tensor, Tensor]:
    """The first observation of each window and the one that is bootstrapped from, `length` `[B]` later: `[B, *obs]`."""
    planes = torch.arange(stack, device=length.device).unsqueeze(-1) + length  # [S, B]
    columns = torch.arange(len(length), device=length.device)
    first = stack_planes(batch.obs[:stack], batch.episode_step[:stack], stack)
    after = stack_planes(batch.obs[planes, columns], batch.episode_step[planes, columns], stack)
    return first[0], after[0]
