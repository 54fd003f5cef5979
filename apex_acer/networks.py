"""Torsos from `config.network`, and the heads that algorithms put on them. All take raw observations."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from apex_acer.config import NetworkConfig, require
from apex_acer.frames import normalise
from apex_acer.trajectory import EnvironmentSpec

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}
NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # channels, kernel, stride (Mnih et al. 2015)
SMALL = ((32, 3, 1), (64, 3, 2))  # for images that the above would shrink to nothing
NATURE_MINIMUM, SMALL_MINIMUM = 36, 5  # pixels; the smallest side that leaves one output


class ActorCriticOutput(NamedTuple):
    """`pi_logits` and `q_values`, both `[B, A]`."""

    pi_logits: Tensor
    q_values: Tensor


class ActorCritic(nn.Module):
    """A shared torso with policy logits and Q values; V is Σ π Q."""

    def __init__(self, config: NetworkConfig, spec: EnvironmentSpec) -> None:
        super().__init__()
        self.torso, width = build_torso(config, spec)
        self.pi_logits = _linear(width, spec.num_actions, gain=0.01)
        self.q_values = _linear(width, spec.num_actions, gain=1.0)

    def forward(self, obs: Tensor) -> ActorCriticOutput:
        """Raw `[B, *obs_shape]` in any dtype to `ActorCriticOutput`, in the parameters' dtype."""
        features = self.torso(normalise(obs, self.pi_logits.weight.dtype))
        return ActorCriticOutput(self.pi_logits(features), self.q_values(features))


def build_torso(config: NetworkConfig, spec: EnvironmentSpec) -> tuple[nn.Sequential, int]:
    """The torso and the width of its output; raises `ConfigError` where it cannot take the observations."""
    fits_conv = spec.is_image and min(spec.obs_shape[1:]) >= SMALL_MINIMUM
    torso = ("conv" if fits_conv else "mlp") if config.torso == "auto" else config.torso
    allowed = f"observations are {list(spec.obs_shape)}, conv needs images of {SMALL_MINIMUM} pixels or more; give mlp"
    require(torso == "mlp" or fits_conv, "network.torso", torso, allowed)
    layers = _convolutions(spec.obs_shape) if torso == "conv" else []
    layers.append(nn.Flatten())
    with torch.no_grad():
        width = nn.Sequential(*layers)(torch.zeros(1, *spec.obs_shape)).shape[1]
    for size in config.hidden_sizes:
        layers += [_linear(width, size, gain=2**0.5), ACTIVATIONS[config.activation]()]
        width = size
    return nn.Sequential(*layers), width


def _convolutions(shape: tuple[int, ...]) -> list[nn.Module]:
    layers: list[nn.Module] = []
    channels = shape[0]
    for width, kernel, stride in NATURE if min(shape[1:]) >= NATURE_MINIMUM else SMALL:
        convolution = nn.Conv2d(channels, width, kernel, stride)
        nn.init.orthogonal_(convolution.weight, 2**0.5)
        nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
        layers += [convolution, nn.ReLU()]
        channels = width
    return layers


def _linear(inputs: int, outputs: int, *, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
