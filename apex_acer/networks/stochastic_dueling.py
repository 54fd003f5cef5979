"""The network of ACER for continuous actions: a policy's mean, V(s) and A(s, a)."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from torch import Tensor, nn

from apex_acer.config import NetworkConfig
from apex_acer.networks.memory import State
from apex_acer.networks.network import Network
from apex_acer.networks.torsos import ACTIVATIONS, build_torso, linear
from apex_acer.protocol.specification import EnvironmentSpec

CRITIC = "critic_"  # begins the names of the critic's recurrent state


class MeanAndValue(NamedTuple):
    """The policy's `mean` `[B, d]`, which may leave the box [−1, 1], and `value` `[B]`."""

    mean: Tensor
    value: Tensor


class StochasticDueling(Network[MeanAndValue]):
    """A policy's mean, and a critic of V(s) and A(s, a), each on a torso and an optional LSTM of its own.

    A has one more hidden layer, of features and action, as wide as the last of `network.hidden_sizes`.
    """

    def __init__(self, config: NetworkConfig, spec: EnvironmentSpec) -> None:
        super().__init__(dataclasses.replace(config, lstm=0), spec)
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
        self.norm = nn.LayerNorm(hidden) if config.layer_norm else nn.Identity()
        self.advantage_head = linear(hidden, 1, gain=0.01)

    def step_prepared(self, inputs: Tensor, state: State) -> tuple[MeanAndValue, State]:
        policy_state, critic_state = _halves(state)
        features, policy_state = self.step_memory(self.lstm, self.features(inputs), policy_state)
        critic_features = self.run(self.critic_torso, inputs)
        critic_features, critic_state = self.step_memory(self.critic_lstm, critic_features, critic_state)
        output = MeanAndValue(self.mean(features), self.value(critic_features).squeeze(-1))
        return output, policy_state | {f"{CRITIC}{name}": value for name, value in critic_state.items()}

    def unroll_policy(
        self, inputs: Tensor, reset: Tensor, state: State, burn_in: int = 0, fresh: Tensor | None = None
    ) -> Tensor:
        """Means `[L, B, d]` for `prepare`d consecutive observations `[L * B, …]`; arguments as in `memory.unroll`."""
        mean: Tensor = self.mean(self.unroll_features(inputs, reset, _halves(state)[0], burn_in, fresh))
        return mean

    def unroll_critic(
        self, inputs: Tensor, reset: Tensor, state: State, burn_in: int = 0, fresh: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """V `[L, B]`, and features `[L, B, F]` for `advantage`; arguments as in `unroll_policy`."""
        features = self.run(self.critic_torso, inputs)
        features = self.unroll_memory(self.critic_lstm, features, reset, _halves(state)[1], burn_in, fresh)
        return self.value(features).squeeze(-1), features

    def advantage(self, features: Tensor, actions: Tensor) -> Tensor:
        """A(s, a) `[n, ...]` of several actions `[n, ..., d]` for each of the critic's `features` `[..., F]`."""
        hidden = self.advantage_of_features(features) + self.advantage_of_action(actions)
        advantage: Tensor = self.advantage_head(self.activation(self.norm(hidden)))
        return advantage.squeeze(-1)


def _halves(state: State) -> tuple[State, State]:
    """The policy's recurrent state and the critic's."""
    critic_state = {name.removeprefix(CRITIC): value for name, value in state.items() if name.startswith(CRITIC)}
    return {name: value for name, value in state.items() if not name.startswith(CRITIC)}, critic_state
