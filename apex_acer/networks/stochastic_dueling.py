"""The network of ACER for continuous actions: a policy's mean, V(s) and A(s, a)."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from apex_acer.config import NetworkConfig
from apex_acer.networks.memory import State
from apex_acer.networks.network import Network
from apex_acer.networks.torsos import ACTIVATIONS, build_torso, linear
from apex_acer.protocol.specification import EnvironmentSpec

CRITIC = "critic_"  # begins the names of its recurrent state


class MeanAndValue(NamedTuple):
    """The policy's `mean` `[B, d]`, which may leave the box [−1, 1], and `value` `[B]`."""

    mean: Tensor
    value: Tensor


class Evaluated(NamedTuple):
    """V `[L, B]`, and the `features` `[L, B, F]` that A is computed from."""

    value: Tensor
    features: Tensor


class StochasticDueling(Network):
    """A policy's mean, and a critic of V(s) and A(s, a); each has a torso, and an LSTM on it if `network.lstm` asks for one.

    A has a hidden layer more, as wide as the last of `network.hidden_sizes`, which sees features and action.
    """

    def __init__(self, config: NetworkConfig, spec: EnvironmentSpec) -> None:
        super().__init__(config, spec)
        self.critic_torso, critic_width = build_torso(config, spec, config.hidden_sizes)
        self.lstm = nn.LSTMCell(self.width, config.lstm) if config.lstm else None
        self.critic_lstm = nn.LSTMCell(critic_width, config.lstm) if config.lstm else None
        width, hidden = config.lstm or critic_width, config.hidden_sizes[-1]
        self.mean = linear(config.lstm or self.width, spec.action_dim, gain=0.01)
        self.value = linear(width, 1, gain=0.01)
        # the hidden layer is in two parts, so that the features' one is computed once for all actions
        self.advantage_of_features = linear(width, hidden, gain=1.0)
        self.advantage_of_action = linear(spec.action_dim, hidden, gain=1.0)
        self.activation = ACTIVATIONS[config.activation]()
        self.advantage_head = linear(hidden, 1, gain=0.01)

    def forward(self, obs: Tensor) -> MeanAndValue:
        """The output, in the parameters' dtype, for raw observations `[B, *obs_shape]`, each at an episode's start."""
        return self.step(obs, {})[0]

    def step(self, obs: Tensor, state: State) -> tuple[MeanAndValue, State]:
        """The output and the next recurrent state; an empty state is that of an episode's start."""
        inputs, (own, critics) = self.prepare(obs), _halves(state)
        features, own = self.step_memory(self.lstm, self.features(inputs), own)
        critic_features, critics = self.step_memory(self.critic_lstm, self.run(self.critic_torso, inputs), critics)
        output = MeanAndValue(self.mean(features), self.value(critic_features).squeeze(-1))
        return output, own | {f"{CRITIC}{name}": value for name, value in critics.items()}

    def unroll_policy(
        self, inputs: Tensor, reset: Tensor, state: State, burn_in: int = 0, fresh: Tensor | None = None
    ) -> Tensor:
        """Means `[L, B, d]` for `prepare`d consecutive observations `[L * B, *obs_shape]`.

        `reset` `[L, B]` is true if an episode begins there; the other arguments are those of `memory.unroll`.
        """
        features = self.features(inputs).view(*reset.shape, -1)  # [L, B, F]
        mean: Tensor = self.mean(self.unroll_memory(self.lstm, features, reset, _halves(state)[0], burn_in, fresh))
        return mean

    def unroll_critic(
        self, inputs: Tensor, reset: Tensor, state: State, burn_in: int = 0, fresh: Tensor | None = None
    ) -> Evaluated:
        """V, and features for `advantage`; the arguments are those of `unroll_policy`."""
        features = self.run(self.critic_torso, inputs).view(*reset.shape, -1)  # [L, B, F]
        features = self.unroll_memory(self.critic_lstm, features, reset, _halves(state)[1], burn_in, fresh)
        return Evaluated(self.value(features).squeeze(-1), features)

    def advantage(self, features: Tensor, actions: Tensor) -> Tensor:
        """A(s, a) `[n, ...]` of several actions `[n, ..., d]` for each of the critic's `features` `[..., F]`."""
        hidden = self.advantage_of_features(features) + self.advantage_of_action(actions)
        advantage: Tensor = self.advantage_head(self.activation(hidden))
        return advantage.squeeze(-1)


def _halves(state: State) -> tuple[State, State]:
    """The policy's recurrent state and the critic's."""
    critics = {name.removeprefix(CRITIC): value for name, value in state.items() if name.startswith(CRITIC)}
    return {name: value for name, value in state.items() if not name.startswith(CRITIC)}, critics
