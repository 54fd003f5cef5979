"""The models that curiosity learns from transitions, with a torso of their own."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from apex_acer.config import NetworkConfig
from apex_acer.functional import forward_error, inverse_error, split_choices, sum_of
from apex_acer.networks.network import TorsoNetwork
from apex_acer.networks.torsos import head
from apex_acer.protocol.specification import EnvironmentSpec

HIDDEN = 256  # units of each model's hidden layer, as in the paper


class Errors(NamedTuple):
    """How wrong the models are about each transition, `[T, B]`."""

    forward: Tensor
    """`forward_error` about the features of the observation after it."""
    inverse: Tensor
    """`inverse_error` about the action."""


class Curiosity(TorsoNetwork):
    """Features of observations, and models of the action between two observations and of where an action leads."""

    def __init__(self, config: NetworkConfig, spec: EnvironmentSpec) -> None:
        super().__init__(config, spec, config.hidden_sizes)
        self._branches = list(spec.actions.branches)
        num = spec.num_choices + spec.action_dim
        self.inverse_model = head(2 * self.width, HIDDEN, num, activation=config.activation)
        self.forward_model = head(self.width + num, HIDDEN, self.width, activation=config.activation)

    def forward(self, inputs: Tensor, action: Tensor) -> Errors:
        """Errors about `action` `[T, B, …]` between consecutive `prepare`d observations `[(T+1) * B, *obs_shape]`."""
        features = self.features(inputs).view(len(action) + 1, action.shape[1], -1)  # [T+1, B, F]
        before, after = features[:-1], features[1:]
        guessed = self.inverse_model(torch.cat([before, after], -1))
        expected = self.forward_model(torch.cat([before, self._vector(action).to(before.dtype)], -1))
        return Errors(forward_error(expected, after), self._inverse_error(guessed, action))

    def _vector(self, action: Tensor) -> Tensor:
        """`action` as numbers `[T, B, num]`: choices as one-hot vectors side by side."""
        if not self._branches:
            return action
        choices = zip(split_choices(action, self._branches), self._branches, strict=True)
        return torch.cat([one_hot(choice, size) for choice, size in choices], -1)

    def _inverse_error(self, guessed: Tensor, action: Tensor) -> Tensor:
        if not self._branches:
            return inverse_error(guessed, action)
        choices = zip(torch.split(guessed, self._branches, -1), split_choices(action, self._branches), strict=True)
        return sum_of(inverse_error(logits, choice) for logits, choice in choices)
