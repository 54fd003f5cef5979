"""Soft actor-critic (Haarnoja et al. 2018, arXiv 1812.05905): targets and losses of single samples."""

from __future__ import annotations

from torch import Tensor


def soft_target(*, reward: Tensor, discount: Tensor, q_values: Tensor, log_prob: Tensor, temperature: Tensor) -> Tensor:
    """The target of Q: reward + discount · (min Q(s′, a′) − α log π(a′|s′)), equation 3 with the smaller of several Q.

    `q_values` `[num, B]` are the target critics' of one action a′ of the policy per sample; `reward`, `discount` and
    `log_prob` are `[B]`, and `temperature` is the scalar α.
    """
    return reward + discount * (q_values.amin(0) - temperature * log_prob)


def soft_policy_loss(*, q_values: Tensor, log_prob: Tensor, temperature: Tensor) -> Tensor:
    """α log π(a|s) − min Q(s, a), equation 7, `[B]`, of reparametrised actions with gradient to the policy."""
    return temperature * log_prob - q_values.amin(0)


def temperature_loss(log_temperature: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """−log α · (log π(a|s) + target entropy), `[B]`, with gradient to log α only.

    Its sign is that of equation 18's gradient; the authors' program, too, follows log α rather than α.
    """
    return -log_temperature * (log_prob.detach() + target_entropy)
