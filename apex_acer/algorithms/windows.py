"""What algorithms share that learn from windows of n steps of replay: returns, critics' losses, priorities, exploration."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from apex_acer.algorithms.algorithm import LossOutput
from apex_acer.config import AlgorithmConfig, NStepConfig, RunConfig
from apex_acer.functional import NStep, masked_means, n_step_return, n_step_returns, shape_rewards, squared_error_loss
from apex_acer.networks.frames import stack_planes
from apex_acer.protocol.specification import Array
from apex_acer.protocol.unroll import Batch, Unroll, take_rows


def shaped_return(given: AlgorithmConfig, reward: Tensor, terminated: Tensor, truncated: Tensor, mask: Tensor) -> NStep:
    """The n-step return of windows `[n, ...]`, with rewards shaped by the run's settings."""
    shaped = shape_rewards(reward, terminated, clip=given.reward_clip, penalty=given.terminal_penalty)
    return n_step_return(reward=shaped, terminated=terminated, truncated=truncated, mask=mask, gamma=given.gamma)


def shaped_returns(given: NStepConfig, reward: Tensor, terminated: Tensor, truncated: Tensor, mask: Tensor) -> NStep:
    """The n-step return from each step of sequences `[T, ...]`, with rewards shaped by the run's settings."""
    shaped = shape_rewards(reward, terminated, clip=given.reward_clip, penalty=given.terminal_penalty)
    flags = {"terminated": terminated, "truncated": truncated, "mask": mask}
    return n_step_returns(reward=shaped, **flags, gamma=given.gamma, n_steps=given.n_steps)


def window_ends(batch: Batch, length: Tensor, stack: int) -> tuple[Tensor, Tensor]:
    """The first observation of each window and the one that is bootstrapped from, `length` `[B]` later: `[B, *obs]`."""
    planes = torch.arange(stack, device=length.device).unsqueeze(-1) + length  # [S, B]
    rows = planes * len(length) + torch.arange(len(length), device=length.device)
    after = stack_planes(take_rows(batch.obs, rows), take_rows(batch.episode_step, rows), stack)
    return stack_planes(batch.obs[:stack], batch.episode_step[:stack], stack)[0], after[0]


def critics_loss(q_values: Tensor, target: Tensor, batch: Batch) -> LossOutput:
    """The mean of Σ ½ (target − Q)² over the critics' `q_values` `[num, B]`, which alone have a gradient.

    The priorities are the means of |target − Q| over critics, 0 if the first step is masked.
    """
    mask = batch.mask[0]
    loss, error = squared_error_loss(q_values, target, batch.importance, mask)
    td_error = error.abs().mean(0)
    taken = {"q_target": target, "q_taken": target - error.mean(0), "importance": batch.importance}
    metrics = masked_means({"td_error": td_error, **taken}, mask) | {"q_loss": loss.detach()}
    return LossOutput(loss, metrics, td_error, mask.sum())


@torch.no_grad()
def follow_(slow: nn.Module, fast: nn.Module, decay: float) -> None:
    """Moves the parameters of `slow` towards those of `fast`: θ′ ← decay · θ′ + (1 − decay) · θ."""
    behind: list[Tensor] = list(slow.parameters())
    ahead: list[Tensor] = list(fast.parameters())
    torch._foreach_lerp_(behind, ahead, 1 - decay)


def priorities(
    given: NStepConfig, unroll: Unroll, q_taken: Tensor, value: Tensor, target: Callable[[NStep, Tensor], Tensor]
) -> Array:
    """|n-step target − Q| of each step of an unroll, `[k, N]`, as its actor knows it; 0 if the step is masked.

    Args:
        given: the run's settings.
        unroll: whole, as it was acted.
        q_taken: `[k, N, num]` of the actions taken, by each critic, whose mean error counts.
        value: `[k+1, N]` of each observation and of the one after the unroll.
        target: of an n-step return and the value `[k, N]` that it is bootstrapped from.
    """
    arrays = (unroll.reward, unroll.terminated, unroll.truncated, unroll.mask)
    reward, terminated, truncated, mask = (torch.from_numpy(array) for array in arrays)
    ahead = shaped_returns(given, reward, terminated, truncated, mask)
    steps = torch.arange(len(mask)).unsqueeze(-1)
    bootstrap = value.gather(0, steps + ahead.length)
    error = (target(ahead, bootstrap).unsqueeze(-1) - q_taken).abs().mean(-1)
    found: Array = torch.where(mask, error, 0.0).numpy()
    return found


def with_next(unroll: Unroll, ahead: dict[str, Array], name: str) -> Tensor:
    """The behaviour `name` of each step of an unroll and of the one after it, `[k+1, N, ...]`."""
    return torch.from_numpy(np.concatenate([unroll.behaviour[name], ahead[name][None]]))


def spread(config: RunConfig, num: int, actor: int, base: float, alpha: float) -> Tensor:
    """`[num]` float32: environment i of all actors' N environments has base ^ (1 + i / (N − 1) · alpha)."""
    last = config.actors.count * num - 1
    rank = torch.arange(actor * num, (actor + 1) * num, dtype=torch.float64) / max(last, 1)
    powers: Tensor = base ** (1 + alpha * rank)
    return powers.float()
