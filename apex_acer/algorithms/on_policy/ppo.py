"""Proximal policy optimisation: several epochs of minibatches on a clipped surrogate (arXiv 1707.06347)."""

from __future__ import annotations

from torch import Tensor

from apex_acer.algorithms.algorithm import Descent
from apex_acer.algorithms.on_policy.common import ADVANTAGE, PolicyGradient, minibatches
from apex_acer.algorithms.on_policy.settings import PpoConfig
from apex_acer.algorithms.samples import Sequences
from apex_acer.functional import clipped_surrogate


class Ppo(PolicyGradient):
    """PPO. Ratios are taken against the recorded behaviour policy, even if it is stale."""

    settings_class = PpoConfig
    settings: PpoConfig

    def update(self, samples: Sequences, descent: Descent) -> None:
        samples = self.prepare(samples, descent)
        for _ in range(self.settings.epochs):
            for part in minibatches(samples, self.settings.minibatches):
                descent.step(part)

    def policy_loss(
        self, samples: Sequences, log_prob: Tensor, behaviour_log_prob: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """PPO's clipped policy loss per step, `[T, B]`."""
        log_ratio, clip = log_prob - behaviour_log_prob, self.settings.clip
        losses = clipped_surrogate(log_ratio=log_ratio, advantage=samples.targets[ADVANTAGE], clip=clip)
        clipped = (log_ratio.detach().exp() - 1).abs() > clip
        return losses, {"clipped_share": clipped.to(losses.dtype)}
