"""The network of ACER for continuous actions: the mean of a policy, V(s) and A(s, a)."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from apex_acer.config import NetworkConfig
from apex_acer.networks.memory import State, remember, remember_all
from apex_acer.networks.torsos import ACTIVATIONS, Network, linear
from apex_acer.protocol.specification import EnvironmentSpec


class MeanAndValue(NamedTuple):
    """The policy's `mean` `[B, d]`, which may leave the normalised box, and `value` `[B]`."""

    mean: Tensor
    value: Tensor


class StochasticDueling(Network):
    """A shared torso, an LSTM on it if `network.lstm` asks for one, a policy's mean, V(s), and A(s, a) with a hidden layer.

    That layer is as wide as the last of `network.hidden_sizes`.
    """

    def __init__(self, config: NetworkConfig, spec: EnvironmentSpec) -> None:
        super().__init__(config, spec)
        self.lstm = nn.LSTMCell(self.width, config.lstm) if config.lstm else None
        width, hidden = config.lstm or self.width, config.hidden_sizes[-1]
        self.mean = linear(width, spec.action_dim, gain=0.01)
        self.value = linear(width, 1, gain=0.01)
        # one layer that sees features and action, as two, so that the features' share is computed once for all actions
        self.advantage_of_features = linear(width, hidden, gain=1.0)
        self.advantage_of_action = linear(spec.action_dim, hidden, gain=1.0)
        self.activation = ACTIVATIONS[config.activation]()
        self.advantage_head = linear(hidden, 1, gain=0.01)

    def forward(self, obs: Tensor) -> MeanAndValue:
        """The output, in the parameters' dtype, for raw observations `[B, *obs_shape]`, each at an episode's start."""
        return self.step(obs, {})[0]

    def step(self, obs: Tensor, state: State) -> tuple[MeanAndValue, State]:
        """Like `forward`, with the recurrent state before and after; an empty state is that of an episode's start."""
        features, state = remember(self.lstm, self.features(self.prepare(obs)), state)
        return self._heads(features), state

    def unroll(
        self, inputs: Tensor, reset: Tensor, state: State, burn_in: int = 0, fresh: Tensor | None = None
    ) -> tuple[MeanAndValue, Tensor]:
        """Outputs `[L, B, …]` for `prepare`d consecutive observations `[L * B, *obs_shape]`, and features for `advantage`.

        `reset` `[L, B]` is true if an episode begins there; the other arguments are those of `remember_all`.
        """
        features = self.features(inputs).view(*reset.shape, -1)  # [L, B, F]
        features = remember_all(self.lstm, features, reset, state, burn_in, fresh)
        return self._heads(features), features

    def advantage(self, features: Tensor, actions: Tensor) -> Tensor:
        """A(s, a) `[n, ...]` of several actions `[n, ..., d]` for each of the `features` `[..., F]`."""
        hidden = self.advantage_of_features(features) + self.advantage_of_action(actions)
        advantage: Tensor = self.advantage_head(self.activation(hidden))
        return advantage.squeeze(-1)

    def _heads(self, features: Tensor) -> MeanAndValue:
        return MeanAndValue(self.mean(features), self.value(features).squeeze(-1))
