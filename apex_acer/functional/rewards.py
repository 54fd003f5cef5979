"""Reward shaping: clipping and a penalty for termination."""

from __future__ import annotations

from torch import Tensor


def shape_rewards(reward: Tensor, terminated: Tensor, *, clip: float, penalty: float) -> Tensor:
    """`reward` `[...]` clipped to ± `clip` (0: not clipped), less `penalty` on the steps that `terminated` `[...]`."""
    clipped = reward.clamp(-clip, clip) if clip else reward
    return clipped - penalty * terminated.to(reward.dtype) if penalty else clipped
