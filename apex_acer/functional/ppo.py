"""Proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347): losses of single samples."""

from __future__ import annotations

import torch
from torch import Tensor

from apex_acer.functional.acer import MAX_LOG_RHO


def clipped_surrogate(*, log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """−min(r A, clip(r, 1 − ε, 1 + ε) A), equation 7, `[...]`, with gradient to the logarithm of r.

    It has no gradient if the ratio r has already left the interval on the side to which the advantage A pulls it.

    Args:
        log_ratio: `[...]` log π(a) − log π_old(a); ratios above e^30 count as that.
        advantage: `[...]`, a constant.
        clip: ε.
    """
    ratio = log_ratio.clamp(max=MAX_LOG_RHO).exp()  # an infinite one has no gradient that is a number
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)


def clipped_value_loss(*, value: Tensor, old_value: Tensor, target: Tensor, clip: float) -> Tensor:
    """½ max((target − V)², (target − V_clipped)²), `[...]`, with gradient to `value`; V_clipped = V_old ± `clip` at most.

    It has no gradient if V has already moved towards the target by more than `clip`. All are `[...]`; all but `value` are
    constants. It is in the authors' program, not in the paper.
    """
    clipped = old_value + (value - old_value).clamp(-clip, clip)
    return 0.5 * torch.maximum((target - value).square(), (target - clipped).square())
