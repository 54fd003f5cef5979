"""The networks: torsos as `config.network` describes them, with the heads of ACER and Ape-X DQN."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from apex_acer.config import NetworkConfig, RunConfig, imports, require
from apex_acer.functional import dueling, forbid, joint_logits, legal_combinations
from apex_acer.networks.device import choose_precision
from apex_acer.networks.frames import to_float
from apex_acer.networks.memory import State as State
from apex_acer.networks.memory import remember, remember_all
from apex_acer.networks.normalisation import ObservationNormaliser
from apex_acer.networks.parts import PartsNormaliser, PartsTorso, unpack
from apex_acer.protocol.actions import Choices
from apex_acer.protocol.specification import MASK, EnvironmentSpec
from apex_acer.protocol.unroll import Unroll

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": functools.partial(nn.ReLU, inplace=True), "tanh": nn.Tanh}
NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # channels, kernel, stride (Mnih et al. 2015)
A3C = ((16, 8, 4), (32, 4, 2))  # Mnih et al. 2016
SMALL = ((32, 3, 1), (64, 3, 2))  # for images that are too small for the above
LARGE_MINIMUM, SMALL_MINIMUM = 36, 5  # pixels; the smallest side that leaves one output


class ActorCriticOutput(NamedTuple):
    """`pi_logits` and `q_values`, both `[B, A]`; of several choices at once the logits are those of each, side by side."""

    pi_logits: Tensor
    q_values: Tensor


class QOutput(NamedTuple):
    """`q_values`, `[B, A]`."""

    q_values: Tensor


class Precise(nn.Module):
    """A module with large layers that may compute in another type than that of its parameters."""

    precision: torch.dtype | None = None
    """The type that its large layers compute in; None: the parameters' type."""

    def cast(self, device: torch.device) -> torch.autocast:
        """A context in which operations on `device` compute in `precision`."""
        return torch.autocast(device.type, self.precision or torch.bfloat16, enabled=self.precision is not None)


class Network(Precise):
    """The base of an algorithm's networks: the normaliser of observations and the torso that `config` names."""

    def __init__(
        self, config: NetworkConfig, spec: EnvironmentSpec, hidden_sizes: tuple[int, ...] | None = None
    ) -> None:
        """`hidden_sizes` replace those of `config`, for a head that has hidden layers of its own."""
        super().__init__()
        self._spec = spec
        kind = PartsNormaliser if spec.parts else ObservationNormaliser
        self.normaliser = kind(spec) if config.normalise else None
        sizes = config.hidden_sizes if hidden_sizes is None else hidden_sizes
        self.torso, self.width = build_torso(config, spec, sizes)

    def prepare(self, obs: Tensor | Mapping[str, Tensor]) -> Tensor:
        """Normalises and converts raw observations `[B, *obs_shape]` of any dtype for the torso, `[B, *input_shape]`.

        Those with parts may also be given unpacked, each part by its name as `[B, *obs_shape]` of the part.
        """
        if self._spec.parts or isinstance(obs, Mapping):
            return self._join(unpack(obs, self._spec) if isinstance(obs, Tensor) else obs)
        is_image = obs.ndim > 2  # the numbers of a vector keep their digits
        dtype = self.precision if self.precision and is_image else self._dtype
        prepared: Tensor = self.normaliser(obs, dtype) if self.normaliser else to_float(obs, dtype)
        return prepared

    def _join(self, parts: Mapping[str, Tensor]) -> Tensor:
        """The prepared parts, flat and side by side."""
        seen, dtype = [parts[name] for name in self._spec.seen], self._dtype
        prepared = self.normaliser(seen, dtype) if self.normaliser else [to_float(part, dtype) for part in seen]
        masks = (
            [parts[MASK][:, -self._spec.num_choices :].ne(0).to(dtype)] if self._spec.has_masks else []
        )  # the newest
        return torch.cat([*(part.flatten(1) for part in prepared), *masks], -1)

    def forbid(self, logits: Tensor, inputs: Tensor) -> Tensor:
        """Logits `[..., choices]` for as many `prepare`d observations `[B, …]`; illegal ones become `ILLEGAL`."""
        return forbid(logits, self._legal(inputs).view_as(logits)) if self._spec.has_masks else logits

    def forbid_combinations(self, values: Tensor, inputs: Tensor) -> Tensor:
        """Likewise values `[..., A]` of all actions, of several choices all combinations."""
        if not (self._spec.has_masks and isinstance(self._spec.actions, Choices)):
            return values
        legal = legal_combinations(self._legal(inputs), self._spec.actions.branches)
        return forbid(values, legal.view_as(values))

    def _legal(self, inputs: Tensor) -> Tensor:
        return inputs[:, -self._spec.num_choices :] > 0.5

    def features(self, inputs: Tensor) -> Tensor:
        """The features `[B, width]` of `prepare`d observations, in the parameters' dtype."""
        with self.cast(inputs.device):
            features: Tensor = self.torso(inputs)
        return features.to(self._dtype)

    def step(self, obs: Tensor, state: State) -> tuple[Any, State]:
        """The output for raw `obs` `[B, *obs_shape]`, and the recurrent state after it."""
        return self(obs), state

    def observe(self, unroll: Unroll) -> None:
        """Adds an unroll's observations to the statistics, if the network has any."""
        if self.normaliser:
            self.normaliser.observe(torch.from_numpy(unroll.obs[-len(unroll.action) :]))

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype


Output = TypeVar("Output")


class RecurrentNetwork(Network, Generic[Output]):
    """A torso, and an LSTM on it if `network.lstm` asks for one; heads compute the output from their features."""

    def __init__(
        self, config: NetworkConfig, spec: EnvironmentSpec, hidden_sizes: tuple[int, ...] | None = None
    ) -> None:
        """Like `Network`; `width` is that of the features."""
        super().__init__(config, spec, hidden_sizes)
        self.lstm = nn.LSTMCell(self.width, config.lstm) if config.lstm else None
        self.width = config.lstm or self.width

    def heads(self, features: Tensor, inputs: Tensor) -> Output:
        """The output `[..., A]` for features `[..., width]` of `prepare`d observations `[B, …]`, as many in all."""
        raise NotImplementedError

    def forward(self, obs: Tensor) -> Output:
        """The output, in the parameters' dtype, for raw observations `[B, *obs_shape]`, each at an episode's start."""
        return self.step(obs, {})[0]

    def step(self, obs: Tensor, state: State) -> tuple[Output, State]:
        """Like `forward`, with the recurrent state before and after; an empty state is that of an episode's start."""
        inputs = self.prepare(obs)
        features, state = remember(self.lstm, self.features(inputs), state)
        return self.heads(features, inputs), state

    def unroll(
        self, inputs: Tensor, reset: Tensor, state: State, burn_in: int = 0, fresh: Tensor | None = None
    ) -> Output:
        """Outputs `[L, B, A]` for `prepare`d consecutive observations `[L * B, *obs_shape]`.

        `reset` `[L, B]` is true if an episode begins there; the other arguments are those of `remember_all`.
        """
        features = self.features(inputs).view(*reset.shape, -1)  # [L, B, F]
        return self.heads(remember_all(self.lstm, features, reset, state, burn_in, fresh), inputs)


class ActorCritic(RecurrentNetwork[ActorCriticOutput]):
    """Policy logits and Q values; V is Σ π Q.

    Of several choices at once, Q has a value of each combination.
    """

    def __init__(self, config: NetworkConfig, spec: EnvironmentSpec) -> None:
        super().__init__(config, spec)
        assert isinstance(spec.actions, Choices)
        self.branches = spec.actions.branches
        self.pi_logits = linear(self.width, sum(self.branches), gain=0.01)
        self.q_values = linear(self.width, spec.num_actions, gain=0.01)

    def joint(self, pi_logits: Tensor) -> Tensor:
        """The logits `[..., A]` of all actions, from those of each choice."""
        return joint_logits(pi_logits, self.branches)

    def heads(self, features: Tensor, inputs: Tensor) -> ActorCriticOutput:
        """Both, from the same features."""
        return ActorCriticOutput(self.forbid(self.pi_logits(features), inputs), self.q_values(features))


class QNetwork(RecurrentNetwork[QOutput]):
    """Q values; if `is_dueling`, it computes them from a value and advantages (Wang et al. 2016).

    The last of `network.hidden_sizes` is then the width of the hidden layer that value and advantages each have.
    """

    def __init__(self, config: NetworkConfig, spec: EnvironmentSpec, *, is_dueling: bool) -> None:
        super().__init__(config, spec, config.hidden_sizes[:-1] if is_dueling else None)
        sizes = (self.width, config.hidden_sizes[-1]) if is_dueling else (self.width,)
        self.value = head(*sizes, 1, activation=config.activation) if is_dueling else None
        self.advantage = head(*sizes, spec.num_actions, activation=config.activation)

    def heads(self, features: Tensor, inputs: Tensor) -> QOutput:
        """Q, from the features of state and episode."""
        advantage: Tensor = self.advantage(features)
        q_values = dueling(self.value(features), advantage) if self.value else advantage
        return QOutput(self.forbid_combinations(q_values, inputs))


def head(*sizes: int, activation: str) -> nn.Sequential:
    """Fully connected layers of these widths; the last is linear with small weights, so that outputs start near zero."""
    *inner, last = itertools.pairwise(sizes)
    layers: list[nn.Module] = []
    for inputs, outputs in inner:
        layers += [linear(inputs, outputs, gain=2**0.5), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers, linear(*last, gain=0.01))


AnyNetwork = TypeVar("AnyNetwork", bound=Precise)


def to_train(network: AnyNetwork, config: RunConfig, device: torch.device) -> AnyNetwork:
    """`network` on the learner's `device`, in the precision and the memory format for training."""
    network = network.to(device)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # a third faster on a CPU
    network.precision = choose_precision(config.learner.precision, device, network)
    return network


def build_torso(config: NetworkConfig, spec: EnvironmentSpec, hidden_sizes: tuple[int, ...]) -> tuple[nn.Module, int]:
    """The torso and the width of its output; raises `ConfigError` if it cannot take the observations."""
    if ":" in config.torso:
        return _own_torso(config, spec)
    if spec.parts:
        return _parts_torso(config, spec, hidden_sizes)
    fits_conv = spec.is_image and min(spec.obs_shape[1:]) >= SMALL_MINIMUM
    torso = ("conv" if fits_conv else "mlp") if config.torso == "auto" else config.torso
    allowed = f"observations are {list(spec.obs_shape)}, conv needs images of {SMALL_MINIMUM} pixels or more; give mlp"
    require(torso == "mlp" or fits_conv, "network.torso", torso, allowed)
    layers = _convolutions(config.convolutions, spec.obs_shape) if torso == "conv" else []
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
    boxes = list(spec.seen.values())
    own = dataclasses.replace(config, torso="auto") if config.torso == "conv" else config
    torsos, widths = zip(*(build_torso(own, box, ()) for box in boxes), strict=True)
    has_conv = any(isinstance(module, nn.Conv2d) for torso in torsos for module in torso.modules())
    allowed = f"no part of the observation is an image of {SMALL_MINIMUM} pixels or more; give mlp"
    require(config.torso != "conv" or has_conv, "network.torso", config.torso, allowed)
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


def _convolutions(name: str, shape: tuple[int, ...]) -> list[nn.Module]:
    layers: list[nn.Module] = []
    channels = shape[0]
    large = NATURE if name == "nature" else A3C
    for width, kernel, stride in large if min(shape[1:]) >= LARGE_MINIMUM else SMALL:
        convolution = nn.Conv2d(channels, width, kernel, stride)
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
