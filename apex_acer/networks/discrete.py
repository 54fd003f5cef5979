"""Networks of ACER and of Q-learning for discrete actions."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from apex_acer.config import NetworkConfig
from apex_acer.functional import dueling, joint_logits
from apex_acer.networks.network import RecurrentNetwork
from apex_acer.networks.torsos import head, linear
from apex_acer.protocol.specification import EnvironmentSpec


class ActorCriticOutput(NamedTuple):
    """`pi_logits` and `q_values`, both `[B, A]`; of several choices at once the logits are those of each, side by side."""

    pi_logits: Tensor
    q_values: Tensor


class QOutput(NamedTuple):
    """`q_values`, `[B, A]`."""

    q_values: Tensor


class ActorCritic(RecurrentNetwork[ActorCriticOutput]):
    """Policy logits and Q values; V is Σ π Q.

    Of several choices at once, Q has a value of each combination.
    """

    def __init__(self, config: NetworkConfig, spec: EnvironmentSpec) -> None:
        super().__init__(config, spec)
        self.branches = spec.actions.branches
        self.pi_logits = linear(self.width, sum(self.branches), gain=0.01)
        self.q_values = linear(self.width, spec.num_actions, gain=0.01)

    def joint(self, pi_logits: Tensor) -> Tensor:
        """The logits `[..., A]` of all actions, from those of each choice."""
        return joint_logits(pi_logits, self.branches)

    def heads(self, features: Tensor, inputs: Tensor) -> ActorCriticOutput:
        return ActorCriticOutput(self.forbid(self.pi_logits(features), inputs), self.q_values(features))


class QNetwork(RecurrentNetwork[QOutput]):
    """Q values; if `is_dueling`, it computes them from a value and advantages (Wang et al. 2016).

    The last of `network.hidden_sizes` is then the width of the hidden layer that value and advantages each have.
    """

    def __init__(self, config: NetworkConfig, spec: EnvironmentSpec, *, is_dueling: bool) -> None:
        super().__init__(config, spec, config.hidden_sizes[:-1] if is_dueling else None)
        sizes = (self.width, config.hidden_sizes[-1]) if is_dueling else (self.width,)
        self.value = head(*sizes, 1, activation=config.activation) if is_dueling else None
        self.advantage = head(*sizes, spec.num_actions, activation=config.activation)

    def heads(self, features: Tensor, inputs: Tensor) -> QOutput:
        advantage = self._outputs(self.advantage, features)
        q_values = dueling(self._outputs(self.value, features), advantage) if self.value else advantage
        return QOutput(self.forbid_combinations(q_values, inputs))

    def _outputs(self, layers: nn.Sequential, features: Tensor) -> Tensor:
        """The outputs of a head, whose hidden layer, the largest of all with images, computes in `precision`."""
        outputs: Tensor = layers[-1](self.run(layers[:-1], features))
        return outputs
