"""Actor-critic on fresh segments: A2C, A3C (arXiv 1602.01783), IMPALA with V-trace (arXiv 1802.01561), and REINFORCE."""

from __future__ import annotations

import torch
from torch import Tensor

from apex_acer.algorithms.algorithm import Descent, Feeding
from apex_acer.algorithms.on_policy.common import ADVANTAGE, PolicyGradient
from apex_acer.algorithms.on_policy.settings import ActorCriticConfig
from apex_acer.config import RunConfig
from apex_acer.functional import Advantages, Distribution, each_tensor, vtrace
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import Batch


class ActorCritic(PolicyGradient):
    """One optimizer step on each batch of segments."""

    settings = ActorCriticConfig

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None:
        super().__init__(config, spec, device)
        self._config = settings(config)

    @staticmethod
    def feeding(config: RunConfig) -> Feeding:
        """Fresh segments, each in one batch; they may be whole episodes."""
        return Feeding(fresh=True, whole_episodes=settings(config).whole_episodes)

    def learn(self, batch: Batch, descent: Descent) -> None:
        """One step on all of the batch."""
        descent.step(batch)

    def advantages(self, batch: Batch, policy: Distribution, value: Tensor) -> Advantages:
        """By GAE or V-trace; without a baseline the advantage is the return."""
        if self._config.targets == "gae":
            return super().advantages(batch, policy, value if self._config.baseline else torch.zeros_like(value))
        behaviour, action = self.network.head.recorded(batch.action, batch.behaviour)
        acted = each_tensor(policy, lambda tensor: tensor[:-1])
        return vtrace(
            log_rho=acted.log_prob(action) - behaviour.log_prob(action),
            reward=self.rewards(batch),
            value=value,
            terminated=batch.terminated,
            truncated=batch.truncated,
            mask=batch.mask,
            gamma=self._config.gamma,
            gae_lambda=self._config.gae_lambda,
        )

    def policy_loss(
        self, batch: Batch, log_prob: Tensor, behaviour_log_prob: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """−A log π(a) of each step, `[T, B]`."""
        return -batch.targets[ADVANTAGE] * log_prob, {}

    def value_loss(self, batch: Batch, value: Tensor) -> Tensor:
        """½ (target − V)² of each step, `[T, B]`; 0 without a baseline."""
        return super().value_loss(batch, value) if self._config.baseline else torch.zeros_like(value)


def settings(config: RunConfig) -> ActorCriticConfig:
    """The `[algorithm]` section of an actor-critic run."""
    assert isinstance(config.algorithm, ActorCriticConfig)
    return config.algorithm
