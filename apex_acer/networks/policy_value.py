"""Networks of on-policy algorithms: a policy, and V on the same torso or in a network of its own."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn

from apex_acer.config import NetworkConfig
from apex_acer.functional import Distribution
from apex_acer.networks.memory import State, remember, remember_all
from apex_acer.networks.policy_heads import CategoricalOutput, policy_head
from apex_acer.networks.torsos import Network, Precise, build_torso, linear
from apex_acer.protocol.specification import EnvironmentSpec


class PolicyAndValue(NamedTuple):
    """The `policy` of `[..., B]` observations, and V `[..., B]` if the network has it."""

    policy: Distribution
    value: Tensor | None


class PolicyNetwork(Network):
    """A torso, an LSTM on it if `network.lstm` asks for one, a policy's head, and a head of V if `with_value`."""

    def __init__(self, config: NetworkConfig, spec: EnvironmentSpec, initial_std: float, *, with_value: bool) -> None:
        super().__init__(config, spec)
        self.lstm = nn.LSTMCell(self.width, config.lstm) if config.lstm else None
        width = config.lstm or self.width
        self.head = policy_head(spec)(width, spec, initial_std)
        self.value = linear(width, 1, gain=1.0) if with_value else None

    def forward(self, obs: Tensor) -> Any:
        """The head's output for raw observations `[B, *obs_shape]`, each at an episode's start."""
        return self.step(obs, {})[0]

    def step(self, obs: Tensor, state: State) -> tuple[Any, State]:
        """Like `forward`, with the recurrent state before and after; an empty state is that of an episode's start."""
        inputs = self.prepare(obs)
        features, state = remember(self.lstm, self.features(inputs), state)
        return self._output(features, inputs), state

    def unroll(self, inputs: Tensor, reset: Tensor, state: State) -> PolicyAndValue:
        """Policy and V `[L, B]` for `prepare`d consecutive observations `[L * B, *obs_shape]`.

        `reset` `[L, B]` is true if an episode begins there; `state` is that before the first step.
        """
        computed = self.features(inputs)
        features = computed.view(*reset.shape, computed.shape[-1])  # [L, B, F]; B may be 0
        features = remember_all(self.lstm, features, reset, state)
        value = self.value(features).squeeze(-1) if self.value else None
        return PolicyAndValue(self.head.distribution(self._output(features, inputs)), value)

    def _output(self, features: Tensor, inputs: Tensor) -> Any:
        output = self.head(features)
        if isinstance(output, CategoricalOutput):
            return CategoricalOutput(self.forbid(output.pi_logits, inputs))
        return output


class ValueNetwork(Precise):
    """V, with a torso of its own."""

    def __init__(self, config: NetworkConfig, spec: EnvironmentSpec) -> None:
        super().__init__()
        self.torso, width = build_torso(config, spec, config.hidden_sizes)
        self.value = linear(width, 1, gain=1.0)

    def forward(self, inputs: Tensor) -> Tensor:
        """V `[B]` of `prepare`d observations `[B, *obs_shape]`."""
        with self.cast(inputs.device):
            features: Tensor = self.torso(inputs)
        value: Tensor = self.value(features.to(self.value.weight.dtype)).squeeze(-1)
        return value
