"""The parts that DDPG, TD3 and SAC share: the critics' loss, and uniform actions before the first update."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from apex_acer.algorithms.algorithm import LossOutput, SeparateLosses, trainable
from apex_acer.algorithms.samples import Transitions
from apex_acer.config import ContinuousConfig
from apex_acer.functional import masked_means, squared_error_loss
from apex_acer.networks.critics import Actor, Critics
from apex_acer.networks.frames import shift_images

SHIFT = "shift"  # of images, among a loss's random numbers


class CriticLosses(SeparateLosses):
    """The losses of critics and policy, each with gradient to its own groups only; an encoder of images is the critics'."""

    settings: ContinuousConfig
    network: Actor[Any]
    critics: Critics

    def parameters(self) -> dict[str, list[nn.Parameter]]:
        """The trained parameters of the policy, `network`, and of the `critics`, with the encoder that both see."""
        encoder = self.network.encoder
        critics = [*(() if encoder is None else trainable(encoder)), *trainable(self.critics)]
        of_critics = {id(parameter) for parameter in critics}
        policy = [parameter for parameter in trainable(self.network) if id(parameter) not in of_critics]
        return {"network": policy, "critics": critics}

    def losses(self, samples: Transitions) -> dict[str, Callable[[], LossOutput]]:
        obs: Iterable[Tensor] = (samples.obs, samples.next_obs)
        if SHIFT in samples.noise:
            obs = map(shift_images, obs, samples.noise[SHIFT])
        inputs, next_inputs = map(self.network.prepare, obs)
        encoded = self.network.encode(inputs)
        return {
            "critics": partial(self._critics_loss, samples, encoded, next_inputs),
            "network": partial(self._policy_loss, samples, encoded.detach()),
        }

    def noise(self, samples: Transitions) -> dict[str, Tensor]:
        """Random shifts of the images at both ends of each transition, `[2, B, 2]`, if `image_shift` asks for them."""
        shift = self.settings.image_shift
        if not shift:
            return {}
        return {SHIFT: torch.randint(-shift, shift + 1, (2, len(samples.importance), 2))}

    def _critics_loss(self, samples: Transitions, encoded: Tensor, next_inputs: Tensor) -> LossOutput:
        """Mean of Σ ½ (target − Q)² over critics; priorities are the critics' mean |target − Q|."""
        mask, importance = samples.mask, samples.importance
        q_values, target = self._estimate(samples, encoded, next_inputs)
        loss, error = squared_error_loss(q_values, target, importance, mask)
        td_error = error.abs().mean(0)
        means = {"q_target": target, "q_taken": target - error.mean(0), "importance": importance}
        metrics = masked_means({"td_error": td_error, **means}, mask) | {"q_loss": loss.detach()}
        return LossOutput(loss, metrics, td_error, mask.sum())

    @abstractmethod
    def _estimate(self, samples: Transitions, encoded: Tensor, next_inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Q of the actions taken `[num_critics, B]`, and their target `[B]` from the prepared next observations."""

    @abstractmethod
    def _policy_loss(self, samples: Transitions, encoded: Tensor) -> LossOutput:
        """Policy loss from the encoded observations, which have no gradient."""


def uniform(noise: Tensor) -> Tensor:
    """Uniform actions in [−1, 1] from standard normal `noise`."""
    return torch.erf(noise / 2**0.5)
