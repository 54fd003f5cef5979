"""Networks of on-policy algorithms: a policy, and V on the same torso or in a network of its own."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from apex_acer.config import NetworkConfig
from apex_acer.functional import Distribution
from apex_acer.networks.network import Precise, RecurrentNetwork, State
from apex_acer.networks.policy_heads import CategoricalOutput, policy_head
from apex_acer.networks.torsos import linear
from apex_acer.protocol.specification import EnvironmentSpec


class PolicyAndValue(NamedTuple):
    """The `policy` of `[..., B]` observations, and V `[..., B]` if the network has it."""

    policy: Distribution
    value: Tensor | None


class PolicyNetwork(RecurrentNetwork[Any]):
    """A policy's head, and a head of V if `with_value`."""

    def __init__(self, config: NetworkConfig, spec: EnvironmentSpec, initial_std: float, *, with_value: bool) -> None:
        super().__init__(config, spec)
        self.head = policy_head(spec)(self.width, spec, initial_std)
        self.value = linear(self.width, 1, gain=1.0) if with_value else None

    def heads(self, features: Tensor, inputs: Tensor) -> Any:
        """The output of the policy's head."""
        output = self.head(features)
        if isinstance(output, CategoricalOutput):
            return CategoricalOutput(self.forbid(output.pi_logits, inputs))
        return output

    def judge(self, inputs: Tensor, reset: Tensor, state: State) -> PolicyAndValue:
        """Policy and V `[L, B]` for `prepare`d consecutive observations; the arguments are those of `unroll`."""
        features = self.unroll_features(inputs, reset, state)
        value = self.value(features).squeeze(-1) if self.value else None
        return PolicyAndValue(self.head.distribution(self.heads(features, inputs)), value)


class ValueNetwork(Precise):
    """V, with a torso of its own."""

    def __init__(self, config: NetworkConfig, spec: EnvironmentSpec) -> None:
        super().__init__(config, spec, config.hidden_sizes)
        self.value = linear(self.width, 1, gain=1.0)

    def forward(self, inputs: Tensor) -> Tensor:
        """V `[B]` of `prepare`d observations `[B, *obs_shape]`."""
        value: Tensor = self.value(self.features(inputs)).squeeze(-1)
        return value
