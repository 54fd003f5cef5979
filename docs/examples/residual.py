"""A torso and an optimizer of one's own."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from apex_acer.config import NetworkConfig, OptimizerConfig
from apex_acer.protocol.specification import EnvironmentSpec


class Residual(nn.Module):
    """Fully connected blocks with a shortcut around each, all as wide as the first of `network.hidden_sizes`."""

    def __init__(self, config: NetworkConfig, spec: EnvironmentSpec) -> None:
        super().__init__()
        width = config.hidden_sizes[0]
        self.first = nn.Linear(math.prod(spec.input_shape), width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU()) for _ in config.hidden_sizes
        )

    def forward(self, obs: Tensor) -> Tensor:
        """Observations `[B, *input_shape]` to features `[B, width]`."""
        features = self.first(obs.flatten(1))
        for block in self.blocks:
            features = features + block(features)
        return features


def make_optimizer(parameters: list[nn.Parameter], settings: OptimizerConfig) -> torch.optim.Optimizer:
    """Adam with Nesterov's momentum."""
    return torch.optim.NAdam(parameters, settings.learning_rate, betas=(0.9, settings.decay), eps=settings.eps)
