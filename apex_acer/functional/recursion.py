"""Linear recursions backwards in time, which Retrace, GAE and V-trace are."""

from __future__ import annotations

import torch
from torch import Tensor


def backward_recursion(offset: Tensor, slope: Tensor, last: Tensor) -> Tensor:
    """x_t = offset_t + slope_t · x_{t+1} for the T − 1 steps before x_T = `last`, `[T, B]`.

    `offset` and `slope` are `[T−1, B]`, `last` is `[B]`. A slope of zero passes nothing on, not even what is not finite.

    This is a parallel scan by doubling (Hillis and Steele 1986): T steps take log2(T) rounds of a few large operations.
    """
    x = torch.cat([offset, last.unsqueeze(0)])  # [T, B]
    slope = torch.cat([slope, torch.zeros_like(last).unsqueeze(0)])
    reach = 1
    while reach < len(x):
        near, beyond = slope[:-reach], x[reach:]
        composed = torch.where(near != 0, torch.addcmul(x[:-reach], near, beyond), x[:-reach])
        x = torch.cat([composed, x[-reach:]])
        slope = torch.cat([near * slope[reach:], slope[-reach:]])
        reach *= 2
    return x
