"""Curiosity (intrinsic curiosity module, Pathak et al. 2017, arXiv 1705.05363): its losses and its reward."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

BETA = 0.2  # of the paper: the weight of the forward model's loss beside the inverse model's


def forward_error(predicted: Tensor, features: Tensor) -> Tensor:
    """½ ‖φ̂(o′) − φ(o′)‖², `[...]`, equation 5, with gradient to both; both are `[..., F]`."""
    return 0.5 * (predicted - features).square().sum(-1)


def inverse_error(predicted: Tensor, action: Tensor) -> Tensor:
    """How far the inverse model is from the action, `[...]`, with gradient to `predicted` `[..., A]`, equation 3.

    Of `action` `[...]` int64 it is the cross-entropy of logits, of `action` `[..., A]` floats ½ ‖â − a‖².
    """
    if action.is_floating_point():
        return 0.5 * (predicted - action).square().sum(-1)
    return cross_entropy(predicted.flatten(0, -2), action.flatten(), reduction="none").view(action.shape)


def curiosity_loss(*, forward: Tensor, inverse: Tensor, beta: float = BETA) -> Tensor:
    """(1 − β) L_inverse + β L_forward of each step, `[...]`, from equation 7; both are `[...]`."""
    return (1 - beta) * inverse + beta * forward


def intrinsic_reward(*, forward: Tensor, mask: Tensor, eta: float) -> Tensor:
    """η times the forward model's error `[...]`, equation 6, without gradient; 0 where `mask` `[...]` is false."""
    return torch.where(mask, eta * forward.detach(), 0.0)
