"""Gaussian policies with a diagonal covariance, also squashed by tanh; densities are those of whole actions."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor
from torch.nn.functional import softplus

HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


class Gaussian(NamedTuple):
    """`mean` `[..., d]`, and `log_std`, the logarithm of the standard deviation, of a shape that fits it."""

    mean: Tensor
    log_std: Tensor


def gaussian_log_prob(action: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """The log-density `[...]` of `action` `[..., d]`."""
    deviations = (action - mean) * (-log_std).exp()
    return -(0.5 * deviations.square() + log_std + HALF_LOG_TWO_PI).sum(-1)


def gaussian_kl(first: Gaussian, second: Gaussian) -> Tensor:
    """KL(`first` ‖ `second`), `[...]`."""
    log_ratio = first.log_std - second.log_std
    distance = (first.mean - second.mean) * (-second.log_std).exp()
    return 0.5 * ((2 * log_ratio).exp() + distance.square() - 1 - 2 * log_ratio).sum(-1)


def squashed_log_prob(pre_tanh: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """The log-density `[...]` of the action tanh(u), of u = `pre_tanh` `[..., d]` from a Gaussian.

    It takes off log(1 − tanh² u), as 2 (log 2 − u − softplus(−2u)), which is exact at the bounds, where tanh² rounds to 1.
    """
    log_slope = 2 * (math.log(2) - pre_tanh - softplus(-2 * pre_tanh))
    return gaussian_log_prob(pre_tanh, mean, log_std) - log_slope.sum(-1)
