"""Proximal policy optimisation: several epochs of minibatches on a clipped surrogate (arXiv 1707.06347)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from apex_acer.algorithms.algorithm import Descent
from apex_acer.algorithms.on_policy.common import ADVANTAGE, VALUE, VALUE_TARGET, PolicyGradient, minibatches
from apex_acer.algorithms.on_policy.settings import PpoConfig
from apex_acer.algorithms.samples import Sequences
from apex_acer.functional import clipped_surrogate, clipped_value_loss


class Ppo(PolicyGradient):
    """PPO. Ratios are taken against the recorded behaviour policy, even if it is stale."""

    settings_class = PpoConfig
    settings: PpoConfig

    def update(self, samples: Sequences, descent: Descent) -> None:
        samples = self.prepare(samples, descent)
        for _ in range(self.settings.epochs):
            steps = [descent.step(part) for part in minibatches(samples, self.settings.minibatches)]
            if self.settings.target_kl and _mean_kl(steps) > 1.5 * self.settings.target_kl:
                break

    def policy_loss(
        self, samples: Sequences, log_prob: Tensor, behaviour_log_prob: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """PPO's clipped policy loss per step, `[T, B]`."""
        log_ratio, clip = log_prob - behaviour_log_prob, self.settings.clip
        losses = clipped_surrogate(log_ratio=log_ratio, advantage=samples.targets[ADVANTAGE], clip=clip)
        clipped = (log_ratio.detach().exp() - 1).abs() > clip
        return losses, {"clipped_share": clipped.to(losses.dtype)}

    def value_loss(self, samples: Sequences, value: Tensor) -> Tensor:
        """Value loss per step, `[T, B]`, clipped with `value_clip`."""
        if not self.settings.value_clip:
            return super().value_loss(samples, value)
        old, target = samples.targets[VALUE], samples.targets[VALUE_TARGET]
        return clipped_value_loss(value=value, old_value=old, target=target, clip=self.settings.value_clip)


def _mean_kl(steps: list[Mapping[str, Tensor]]) -> float:
    """Mean KL of an epoch; 0 if every step was skipped."""
    divergences = [float(metrics["behaviour_kl"]) for metrics in steps if metrics]
    return sum(divergences) / max(len(divergences), 1)
