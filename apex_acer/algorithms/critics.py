"""The parts that DDPG, TD3 and SAC share: the critics' loss, and uniform actions before the first update."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from apex_acer.algorithms.algorithm import LossOutput, SeparateLosses
from apex_acer.algorithms.samples import Transitions
from apex_acer.functional import masked_means, squared_error_loss
from apex_acer.networks.critics import Critics


class CriticLosses(SeparateLosses):
    """The losses of critics and policy, each with gradient to its own groups only."""

    critics: Critics

    def losses(self, samples: Transitions) -> dict[str, Callable[[], LossOutput]]:
        inputs, next_inputs = (self.network.prepare(obs) for obs in (samples.obs, samples.next_obs))
        return {
            "critics": partial(self._critics_loss, samples, inputs, next_inputs),
            "network": partial(self._policy_loss, samples, inputs),
        }

    def _critics_loss(self, samples: Transitions, inputs: Tensor, next_inputs: Tensor) -> LossOutput:
        """Mean of Σ ½ (target − Q)² over critics; priorities are the critics' mean |target − Q|."""
        mask, importance, q_values = samples.mask, samples.importance, self.critics(inputs, samples.action)
        target = self._target(samples, next_inputs)
        loss, error = squared_error_loss(q_values, target, importance, mask)
        td_error = error.abs().mean(0)
        means = {"q_target": target, "q_taken": target - error.mean(0), "importance": importance}
        metrics = masked_means({"td_error": td_error, **means}, mask) | {"q_loss": loss.detach()}
        return LossOutput(loss, metrics, td_error, mask.sum())

    @abstractmethod
    def _target(self, samples: Transitions, next_inputs: Tensor) -> Tensor:
        """Target of Q, `[B]`, from the prepared next observations."""

    @abstractmethod
    def _policy_loss(self, samples: Transitions, inputs: Tensor) -> LossOutput:
        """Policy loss from the prepared observations."""


def uniform(noise: Tensor) -> Tensor:
    """Uniform actions in [−1, 1] from standard normal `noise`."""
    return torch.erf(noise / 2**0.5)
