"""Networks of ACER, Ape-X DQN and R2D2, for discrete actions."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from apex_acer.config import NetworkConfig
from apex_acer.functional import dueling, joint_logits
from apex_acer.networks.network import Network
from apex_acer.networks.torsos import head, linear
from apex_acer.protocol.specification import EnvironmentSpec


class ActorCriticOutput(NamedTuple):
    """`pi_logits` `[B, Σ branches]` of each choice, side by side, and `q_values` `[B, A]` of all joint actions."""

    pi_logits: Tensor
    q_values: Tensor


class QOutput(NamedTuple):
    """`q_values` `[B, A]`, the means of `quantiles` `[B, A, K]`, of which illegal actions' are not masked."""

    q_values: Tensor
    quantiles: Tensor


class ActorCritic(Network[ActorCriticOutput]):
    """ACER's policy logits and Q values; V is Σ π Q."""

    def __init__(self, config: NetworkConfig, spec: EnvironmentSpec) -> None:
        super().__init__(config, spec)
        self.branches = spec.actions.branches
        self.pi_logits = linear(self.width, sum(self.branches), gain=0.01)
        self.q_values = linear(self.width, spec.num_actions, gain=0.01)

    def joint(self, pi_logits: Tensor) -> Tensor:
        """The logits `[..., A]` of all joint actions, from the logits of each choice."""
        return joint_logits(pi_logits, self.branches)

    def heads(self, features: Tensor, inputs: Tensor) -> ActorCriticOutput:
        return ActorCriticOutput(self.forbid(self.pi_logits(features), inputs), self.q_values(features))


class QNetwork(Network[QOutput]):
    """K quantiles of each action's return, or its mean; if `is_dueling`, from a value and advantages (arXiv 1511.06581).

    Value and advantages then have a hidden layer each, as wide as the last of `network.hidden_sizes`.
    """

    def __init__(
        self, config: NetworkConfig, spec: EnvironmentSpec, *, is_dueling: bool, num_quantiles: int = 1
    ) -> None:
        super().__init__(config, spec, config.hidden_sizes[:-1] if is_dueling else None)
        sizes = (self.width, config.hidden_sizes[-1]) if is_dueling else (self.width,)
        self._num_quantiles = num_quantiles
        self.value = head(config, *sizes, num_quantiles) if is_dueling else None
        self.advantage = head(config, *sizes, num_quantiles * spec.num_actions)

    def heads(self, features: Tensor, inputs: Tensor) -> QOutput:
        advantage = self._outputs(self.advantage, features)
        advantage = advantage.view(*advantage.shape[:-1], self._num_quantiles, self._spec.num_actions)  # [B, K, A]
        value = self._outputs(self.value, features).unsqueeze(-1) if self.value else None
        quantiles = advantage if value is None else dueling(value, advantage)
        return QOutput(self.forbid_combinations(quantiles.mean(-2), inputs), quantiles.movedim(-1, -2))

    def _outputs(self, layers: nn.Sequential, features: Tensor) -> Tensor:
        """The outputs of a head, whose hidden layer computes in `precision`: with images it is the largest layer."""
        outputs: Tensor = layers[-1](self.run(layers[:-1], features))
        return outputs
