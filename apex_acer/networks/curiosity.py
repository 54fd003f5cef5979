"""The intrinsic curiosity module (arXiv 1705.05363): forward and inverse model on a torso of their own."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from apex_acer.config import NetworkConfig
from apex_acer.functional import forward_error, inverse_error, sum_of
from apex_acer.networks.network import TorsoNetwork
from apex_acer.networks.policies import split_action
from apex_acer.networks.torsos import build_torso, head
from apex_acer.protocol.specification import EnvironmentSpec

HIDDEN = 256  # units of each model's hidden layer, as in the paper


class Curiosity(TorsoNetwork):
    """Features of observations, a forward model of the next features and an inverse model of the action between two."""

    def __init__(self, config: NetworkConfig, spec: EnvironmentSpec) -> None:
        super().__init__(build_torso(config, spec, config.hidden_sizes), spec.input_shape)
        self._actions = spec.actions
        num = spec.num_choices + spec.action_dim
        self.inverse_model = head(config, 2 * self.width, HIDDEN, num)
        self.forward_model = head(config, self.width + num, HIDDEN, self.width)

    def forward(self, inputs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Forward and inverse errors `[T, B]` of `action` `[T, B, …]` between `prepare`d observations `[(T+1) * B, …]`."""
        # [T+1, B, F]; B may be 0, of a minibatch without steps
        features = torch.unflatten(self.features(inputs), 0, (len(action) + 1, action.shape[1]))
        before, after = features[:-1], features[1:]
        predicted_action = self.inverse_model(torch.cat([before, after], -1))
        predicted = self.forward_model(torch.cat([before, self._vector(action).to(before.dtype)], -1))
        return forward_error(predicted, after), self._inverse_error(predicted_action, action)

    def _vector(self, action: Tensor) -> Tensor:
        """`action` `[T, B, num]`: choices as one-hot vectors, side by side, and then numbers."""
        choices, numbers = split_action(self._actions, action)
        sizes = self._actions.branches
        return torch.cat([*(one_hot(*pair) for pair in zip(choices, sizes, strict=True)), numbers], -1)

    def _inverse_error(self, predicted: Tensor, action: Tensor) -> Tensor:
        choices, numbers = split_action(self._actions, action)
        *logits, mean = torch.split(predicted, [*self._actions.branches, self._actions.dim], -1)
        errors = [inverse_error(*pair) for pair in zip(logits, choices, strict=True)]
        return sum_of([*errors, inverse_error(mean, numbers.to(mean.dtype))] if self._actions.dim else errors)
