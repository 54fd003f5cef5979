"""Torsos as `config.network` describes them, and the layers that heads are made of."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from apex_acer.config import NetworkConfig, imports, require
from apex_acer.networks.images import fits_conv, require_torso
from apex_acer.networks.memory import State as State
from apex_acer.networks.parts import PartsTorso
from apex_acer.protocol.specification import EnvironmentSpec

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": functools.partial(nn.ReLU, inplace=True), "tanh": nn.Tanh}
NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # channels, kernel, stride (Mnih et al. 2015)
A3C = ((16, 8, 4), (32, 4, 2))  # Mnih et al. 2016
SMALL = ((32, 3, 1), (64, 3, 2))  # for images that are too small for the above
LARGE_MINIMUM = 36  # pixels; the smallest side that leaves one output


def head(*sizes: int, activation: str) -> nn.Sequential:
    """Fully connected layers of these widths; the last is linear with small weights, so that outputs start near zero."""
    *inner, last = itertools.pairwise(sizes)
    layers: list[nn.Module] = []
    for inputs, outputs in inner:
        layers += [linear(inputs, outputs, gain=2**0.5), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers, linear(*last, gain=0.01))


def build_torso(config: NetworkConfig, spec: EnvironmentSpec, hidden_sizes: tuple[int, ...]) -> tuple[nn.Module, int]:
    """The torso and the width of its output; raises `ConfigError` if it cannot take the observations."""
    if ":" in config.torso:
        return _own_torso(config, spec)
    if spec.parts:
        return _parts_torso(config, spec, hidden_sizes)
    require_torso(config, spec)
    is_conv = config.torso != "mlp" and fits_conv(spec)
    layers = _convolutions(config.convolutions, spec.obs_shape) if is_conv else []
    layers.append(nn.Flatten())
    with torch.no_grad():
        width = nn.Sequential(*layers)(torch.zeros(1, *spec.obs_shape)).shape[1]
    hidden = _hidden_layers(config, width, hidden_sizes)
    return nn.Sequential(*layers, *hidden), hidden_sizes[-1] if hidden_sizes else width


def _hidden_layers(config: NetworkConfig, width: int, sizes: tuple[int, ...]) -> list[nn.Module]:
    pairs = itertools.pairwise((width, *sizes))
    return [layer for pair in pairs for layer in (linear(*pair, gain=2**0.5), ACTIVATIONS[config.activation]())]


def _parts_torso(config: NetworkConfig, spec: EnvironmentSpec, hidden_sizes: tuple[int, ...]) -> tuple[nn.Module, int]:
    """A torso for each part, convolutions if it is an image, and the hidden layers on the features of all."""
    require_torso(config, spec)
    boxes = list(spec.seen.values())
    own = dataclasses.replace(config, torso="auto") if config.torso == "conv" else config
    torsos, widths = zip(*(build_torso(own, box, ()) for box in boxes), strict=True)
    hidden = nn.Sequential(*_hidden_layers(config, sum(widths), hidden_sizes))
    return PartsTorso(boxes, torsos, hidden), hidden_sizes[-1] if hidden_sizes else sum(widths)


def _own_torso(config: NetworkConfig, spec: EnvironmentSpec) -> tuple[nn.Module, int]:
    """A user's `module:class`, called with `config` and `spec`, and its width, which two observations of zeros show."""
    key, name = "network.torso", config.torso
    kind = imports.load(key, name, "class")
    # the name may come from a file, so nothing but a module's class is called
    is_module = isinstance(kind, type) and issubclass(kind, nn.Module)
    require(is_module, key, name, "give module:class of a torch.nn.Module")
    torso = imports.attempt(key, name, lambda: kind(config, spec))
    with torch.no_grad():
        features = imports.attempt(key, name, lambda: torso(torch.zeros(2, *spec.input_shape)))
    shape = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
    fits = isinstance(features, Tensor) and features.ndim == 2 and len(features) == 2
    require(fits, key, name, f"it makes {shape} of {[2, *spec.input_shape]}; have it return [2, features]")
    return torso, features.shape[1]


class Convolution(nn.Conv2d):
    """A convolution that, if it has to be differentiated, takes blocks of pixels in a row for channels.

    If the stride s divides the kernel and the width, `[B, C, H, W]` with innermost channels is also `[B, s * C, H, W / s]`.
    The sums are the same, but in bfloat16 the gradient of few channels takes a third of the time on a CPU with AMX.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """The output `[B, out, …]` for `inputs` `[B, C, H, W]`."""
        (down, across), kernel = self.stride, self.kernel_size[1]
        num, channels, height, width = inputs.shape
        if not torch.is_grad_enabled() or across == 1 or kernel % across or width % across:
            return super().forward(inputs)
        blocks = inputs.movedim(1, -1).reshape(num, height, width // across, across * channels).movedim(-1, 1)
        split = self.weight.view(*self.weight.shape[:-1], kernel // across, across)
        weight = split.movedim(-1, 1).flatten(1, 2)  # [out, s * C, kernel, kernel / s]
        return conv2d(blocks, weight, self.bias, (down, 1))


def _convolutions(name: str, shape: tuple[int, ...]) -> list[nn.Module]:
    layers: list[nn.Module] = []
    channels = shape[0]
    large = NATURE if name == "nature" else A3C
    for width, kernel, stride in large if min(shape[1:]) >= LARGE_MINIMUM else SMALL:
        convolution = Convolution(channels, width, kernel, stride)
        nn.init.orthogonal_(convolution.weight, 2**0.5)
        nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
        layers += [convolution, nn.ReLU()]
        channels = width
    return layers


def linear(inputs: int, outputs: int, *, gain: float) -> nn.Linear:
    """A fully connected layer with orthogonal weights of this gain, and no biases at first."""
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
