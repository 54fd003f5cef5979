"""What algorithms with critics of continuous actions share: their loss, slow copies, and random actions to start with."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from apex_acer.algorithms.algorithm import LossOutput
from apex_acer.algorithms.samples import Transitions
from apex_acer.functional import masked_means, squared_error_loss


def critics_loss(q_values: Tensor, target: Tensor, samples: Transitions) -> LossOutput:
    """Mean of Σ ½ (target − Q)² over the critics' `q_values` `[num, B]`, which alone have a gradient.

    The priorities are the means of |target − Q| over critics, 0 where masked.
    """
    mask = samples.mask
    loss, error = squared_error_loss(q_values, target, samples.importance, mask)
    td_error = error.abs().mean(0)
    means = {"q_target": target, "q_taken": target - error.mean(0), "importance": samples.importance}
    metrics = masked_means({"td_error": td_error, **means}, mask) | {"q_loss": loss.detach()}
    return LossOutput(loss, metrics, td_error, mask.sum())


@torch.no_grad()
def follow_(slow: nn.Module, fast: nn.Module, decay: float) -> None:
    """Moves the parameters of `slow` towards those of `fast`: θ′ ← decay · θ′ + (1 − decay) · θ."""
    behind: list[Tensor] = list(slow.parameters())
    ahead: list[Tensor] = list(fast.parameters())
    torch._foreach_lerp_(behind, ahead, 1 - decay)


def uniform(noise: Tensor) -> Tensor:
    """Actions that are uniform in the box [−1, 1], from standard normal `noise` of their shape."""
    return torch.erf(noise / 2**0.5)
