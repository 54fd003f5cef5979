"""What algorithms with critics of continuous actions share: their loss, slow copies, and random actions to start with."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from apex_acer.algorithms.algorithm import LossOutput, SeparateLosses
from apex_acer.algorithms.samples import Transitions
from apex_acer.functional import masked_means, squared_error_loss
from apex_acer.networks.critics import Critics


class CriticLosses(SeparateLosses):
    """Two losses, the critics' and the policy's, each with gradient to its own groups only."""

    critics: Critics

    def losses(self, samples: Transitions) -> dict[str, Callable[[], LossOutput]]:
        inputs, after = (self.network.prepare(obs) for obs in (samples.obs, samples.next_obs))
        return {
            "critics": partial(self._critics_loss, samples, inputs, after),
            "network": partial(self._policy_loss, samples, inputs),
        }

    def _critics_loss(self, samples: Transitions, inputs: Tensor, after: Tensor) -> LossOutput:
        return critics_loss(self.critics(inputs, samples.action), self._target(samples, after), samples)

    @abstractmethod
    def _target(self, samples: Transitions, after: Tensor) -> Tensor:
        """Target of Q, `[B]`, from the prepared observations `after` each transition."""

    @abstractmethod
    def _policy_loss(self, samples: Transitions, inputs: Tensor) -> LossOutput:
        """Policy loss of prepared observations `inputs`."""


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
