"""Rewards as they are learned from."""

from __future__ import annotations

from torch import Tensor


def shape_rewards(reward: Tensor, terminated: Tensor, *, clip: float, penalty: float) -> Tensor:
    """`reward` clipped to ± `clip` (0: not clipped), then less `penalty` where `terminated`.

    Args:
        reward: `[...]`.
        terminated: `[...]` bool.
        clip: 0 or more.
        penalty: 0 or more.

    Returns:
        `[...]` in the dtype given.
    """
    clipped = reward.clamp(-clip, clip) if clip else reward
    return clipped - penalty * terminated.to(reward.dtype) if penalty else clipped
