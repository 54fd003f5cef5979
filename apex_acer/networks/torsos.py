"""Torsos by `[network]` of a run, and the layers of heads."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from apex_acer.config import NetworkConfig, require
from apex_acer.networks.device import one_thread
from apex_acer.networks.images import fits_conv, require_torso
from apex_acer.networks.speed import Convolution
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.system import imports

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": functools.partial(nn.ReLU, inplace=True), "tanh": nn.Tanh}
CONVOLUTIONS = {  # channels, kernel, stride, padding
    "nature": ((32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0)),
    "a3c": ((16, 8, 4, 0), (32, 4, 2, 0)),
    "universe": ((32, 3, 2, 1),) * 4,
    "board": ((64, 4, 1, 0),),
}
SMALL = ((32, 3, 1, 0), (64, 3, 2, 0))  # for images that are too small for the above
BOTTLENECK = 50  # features of an encoder that actor and critics see (Yarats et al. 2019)
LARGE_MINIMUM = 36  # pixels; the smallest side that leaves one output


def head(config: NetworkConfig, *sizes: int) -> nn.Sequential:
    """Fully connected layers of these widths; the last is linear with small weights, so that outputs start near 0."""
    return nn.Sequential(*_hidden_layers(config, sizes[:-1]), linear(*sizes[-2:], gain=0.01))


def build_torso(config: NetworkConfig, spec: EnvironmentSpec, hidden_sizes: tuple[int, ...]) -> tuple[nn.Module, int]:
    """The torso and the width of its output; raises `ConfigError` if it cannot take the observations."""
    if ":" in config.torso:
        return _custom_torso(config, spec)
    if spec.parts:
        return _parts_torso(config, spec, hidden_sizes)
    require_torso(config, spec)
    is_conv = config.torso != "mlp" and fits_conv(spec)
    layers = _convolutions(config, spec.obs_shape) if is_conv else []
    layers.append(nn.Flatten())
    with torch.no_grad():
        width = nn.Sequential(*layers)(torch.zeros(1, *spec.obs_shape)).shape[1]
    hidden = _hidden_layers(config, (width, *hidden_sizes))
    return nn.Sequential(*layers, *hidden), hidden_sizes[-1] if hidden_sizes else width


def build_trunk(config: NetworkConfig, width: int, hidden_sizes: tuple[int, ...]) -> tuple[nn.Module, int]:
    """Layers on the features of a shared encoder, and the width of their output (Yarats et al. 2019).

    A bottleneck of 50 features, normalised and between −1 and 1, comes first: among thousands an action would hardly count.
    """
    bottleneck = linear(width, BOTTLENECK, gain=1.0), nn.LayerNorm(BOTTLENECK), nn.Tanh()
    hidden = _hidden_layers(config, (BOTTLENECK, *hidden_sizes))
    return nn.Sequential(*bottleneck, *hidden), hidden_sizes[-1] if hidden_sizes else BOTTLENECK


def _hidden_layers(config: NetworkConfig, sizes: tuple[int, ...]) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        norm = [nn.LayerNorm(outputs)] if config.layer_norm else []
        layers += [linear(inputs, outputs, gain=2**0.5), *norm, ACTIVATIONS[config.activation]()]
    return layers


def _parts_torso(config: NetworkConfig, spec: EnvironmentSpec, hidden_sizes: tuple[int, ...]) -> tuple[nn.Module, int]:
    """A torso for each part, convolutions if it is an image, and hidden layers on all features."""
    require_torso(config, spec)
    boxes = list(spec.seen.values())
    of_parts = dataclasses.replace(config, torso="auto") if config.torso == "conv" else config
    torsos, widths = zip(*(build_torso(of_parts, box, ()) for box in boxes), strict=True)
    hidden = nn.Sequential(*_hidden_layers(config, (sum(widths), *hidden_sizes)))
    return PartsTorso(boxes, torsos, hidden), hidden_sizes[-1] if hidden_sizes else sum(widths)


class PartsTorso(nn.Module):
    """A torso for each part, and `hidden` layers on their features, side by side."""

    def __init__(self, boxes: Sequence[EnvironmentSpec], torsos: Sequence[nn.Module], hidden: nn.Module) -> None:
        super().__init__()
        self._shapes = [box.obs_shape for box in boxes]
        self.torsos, self.hidden = nn.ModuleList(torsos), hidden

    def forward(self, inputs: Tensor) -> Tensor:
        """Features `[B, F]` of prepared parts `[B, D]`, flat and side by side; action masks behind them are not used."""
        sizes = [math.prod(shape) for shape in self._shapes]
        parts = torch.split(inputs[:, : sum(sizes)], sizes, -1)
        shaped = (part.reshape(inputs.shape[0], *shape) for part, shape in zip(parts, self._shapes, strict=True))
        features = [torso(part) for torso, part in zip(self.torsos, shaped, strict=True)]
        joined: Tensor = self.hidden(torch.cat(features, -1))
        return joined


def _custom_torso(config: NetworkConfig, spec: EnvironmentSpec) -> tuple[nn.Module, int]:
    """A user's `module:class`, made with `config` and `spec`, and its width, found with two observations of zeros."""
    key, name = "network.torso", config.torso
    cls = imports.load(key, name, "class")
    # the name may come from a file, so nothing but a module's class is called
    is_module = isinstance(cls, type) and issubclass(cls, nn.Module)
    require(is_module, key, name, "give module:class of a torch.nn.Module")
    torso = imports.attempt(key, name, lambda: cls(config, spec))
    with torch.no_grad():
        features = imports.attempt(key, name, lambda: torso(torch.zeros(2, *spec.input_shape)))
    shape = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
    fits = isinstance(features, Tensor) and features.ndim == 2 and len(features) == 2
    require(fits, key, name, f"it makes {shape} of {[2, *spec.input_shape]}; have it return [2, features]")
    return torso, features.shape[1]


class ChannelNorm(nn.LayerNorm):
    """Layer normalisation over the channels of each pixel of `[B, C, H, W]`, as in the programs of PQN's authors."""

    def forward(self, inputs: Tensor) -> Tensor:
        """The normalised `inputs`, with their memory format."""
        return super().forward(inputs.movedim(1, -1)).movedim(-1, 1)


def _convolutions(config: NetworkConfig, shape: tuple[int, ...]) -> list[nn.Module]:
    layers: list[nn.Module] = []
    channels = shape[0]
    activation = nn.ELU if config.convolutions == "universe" else nn.ReLU
    fits = config.convolutions == "board" or min(shape[1:]) >= LARGE_MINIMUM
    sizes = CONVOLUTIONS[config.convolutions] if fits else SMALL
    for width, kernel, stride, padding in sizes:
        convolution = Convolution(channels, width, kernel, stride, padding)
        _initialise(convolution, 2**0.5)
        layers += [convolution, *([ChannelNorm(width)] if config.layer_norm else []), activation()]
        channels = width
    return layers


def linear(inputs: int, outputs: int, *, gain: float) -> nn.Linear:
    """A fully connected layer with orthogonal weights of this gain and biases of 0."""
    layer = nn.Linear(inputs, outputs)
    _initialise(layer, gain)
    return layer


@one_thread()  # several, on cores that other processes use, wait for each other and need seconds instead of milliseconds
def _initialise(layer: nn.Linear | nn.Conv2d, gain: float) -> None:
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
