"""Actor-critic on fresh sequences: A2C, A3C (arXiv 1602.01783), IMPALA with V-trace (arXiv 1802.01561), and REINFORCE."""

from __future__ import annotations

import torch
from torch import Tensor

from apex_acer.algorithms.on_policy.common import ADVANTAGE, PolicyGradient
from apex_acer.algorithms.on_policy.settings import ActorCriticConfig
from apex_acer.algorithms.samples import Sequences
from apex_acer.functional import Advantages, Distribution, each_tensor, vtrace


class ActorCritic(PolicyGradient):
    """Advantage actor-critic: one optimizer step on each batch of sequences."""

    settings_class = ActorCriticConfig
    settings: ActorCriticConfig

    def advantages(self, samples: Sequences, policy: Distribution, value: Tensor) -> Advantages:
        """Advantages `[T, B]` by GAE or V-trace; the returns if there is no baseline."""
        settings = self.settings
        if settings.targets == "gae":
            return super().advantages(samples, policy, value if settings.baseline else torch.zeros_like(value))
        behaviour, action = self.network.head.recorded(samples.action, samples.extras)
        target_policy = each_tensor(policy, lambda tensor: tensor[:-1])
        return vtrace(
            log_rho=target_policy.log_prob(action) - behaviour.log_prob(action),
            reward=samples.reward,
            value=value,
            terminated=samples.terminated,
            truncated=samples.last,
            mask=samples.mask,
            gamma=settings.gamma,
            gae_lambda=settings.gae_lambda,
        )

    def policy_loss(
        self, samples: Sequences, log_prob: Tensor, behaviour_log_prob: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Policy loss −A log π(a) per step, `[T, B]`."""
        return -samples.targets[ADVANTAGE] * log_prob, {}

    def value_loss(self, samples: Sequences, value: Tensor) -> Tensor:
        """Value loss ½ (target − V)² per step, `[T, B]`; 0 without a baseline."""
        return super().value_loss(samples, value) if self.settings.baseline else torch.zeros_like(value)
