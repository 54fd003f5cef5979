"""Proximal policy optimisation: several epochs of minibatches on a clipped surrogate (arXiv 1707.06347)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from apex_acer.algorithms.algorithm import Descent
from apex_acer.algorithms.on_policy.common import ADVANTAGE, VALUE, VALUE_TARGET, PolicyGradient
from apex_acer.algorithms.on_policy.settings import PpoConfig
from apex_acer.config import RunConfig
from apex_acer.functional import clipped_surrogate, clipped_value_loss
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import Batch


class Ppo(PolicyGradient):
    """The ratio of probabilities is that to the behaviour as it was recorded, also if it was of older weights."""

    settings = PpoConfig

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None:
        super().__init__(config, spec, device)
        self._config = settings(config)

    def learn(self, batch: Batch, descent: Descent) -> None:
        """The epochs; after one in which the policy has moved too far there are no more."""
        for _ in range(self._config.epochs):
            steps = [descent.step(part) for part in self.minibatches(batch, self._config.minibatches)]
            if self._config.target_kl and _mean_kl(steps) > 1.5 * self._config.target_kl:
                break

    def policy_loss(
        self, batch: Batch, log_prob: Tensor, behaviour_log_prob: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The clipped surrogate of each step, `[T, B]`."""
        log_ratio = log_prob - behaviour_log_prob
        losses = clipped_surrogate(log_ratio=log_ratio, advantage=batch.targets[ADVANTAGE], clip=self._config.clip)
        clipped = (log_ratio.detach().exp() - 1).abs() > self._config.clip
        return losses, {"clipped_share": clipped.to(losses.dtype)}

    def value_loss(self, batch: Batch, value: Tensor) -> Tensor:
        """½ (target − V)² of each step, `[T, B]`, clipped if the configuration asks for it."""
        if not self._config.value_clip:
            return super().value_loss(batch, value)
        old, target = batch.targets[VALUE], batch.targets[VALUE_TARGET]
        return clipped_value_loss(value=value, old_value=old, target=target, clip=self._config.value_clip)


def _mean_kl(steps: list[Mapping[str, Tensor]]) -> float:
    """The mean over an epoch's steps, of which none may have been taken."""
    found = [float(metrics["behaviour_kl"]) for metrics in steps if metrics]
    return sum(found) / max(len(found), 1)


def settings(config: RunConfig) -> PpoConfig:
    """The `[algorithm]` section of a PPO run."""
    assert isinstance(config.algorithm, PpoConfig)
    return config.algorithm
