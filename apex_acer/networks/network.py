"""The bases of an algorithm's networks: a torso, preprocessing and an optional LSTM; subclasses add heads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from apex_acer.config import NetworkConfig, RunConfig
from apex_acer.functional import forbid, legal_combinations
from apex_acer.networks import memory
from apex_acer.networks.frames import to_float, unpack
from apex_acer.networks.memory import State as State
from apex_acer.networks.normalisation import ObservationNormaliser, PartsNormaliser
from apex_acer.networks.speed import choose_precision, put_channels_innermost
from apex_acer.networks.torsos import build_torso
from apex_acer.protocol.specification import MASK, EnvironmentSpec


class TorsoNetwork(nn.Module):
    """A torso with features of `width` numbers; large layers may compute in bfloat16, whatever type parameters have."""

    precision: torch.dtype | None = None
    """The type that large layers compute in; None: the parameters' type."""

    def __init__(self, torso: tuple[nn.Module, int], input_shape: tuple[int, ...]) -> None:
        """`torso` is a module and the width of its output, for inputs `[B, *input_shape]`."""
        super().__init__()
        self._input_shape = input_shape
        self.torso, self.width = torso

    def compute_in(self, name: str, device: torch.device) -> None:
        """Sets `precision` to what `learner.precision` = `name` means on `device`, where the network is already."""
        self.precision = choose_precision(name, device, self, self.torso, self._input_shape)

    def features(self, inputs: Tensor) -> Tensor:
        """The features `[B, width]` of `prepare`d observations, in the parameters' dtype."""
        return self.run(self.torso, inputs)

    def run(self, layers: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        """The output of large `layers`, in the parameters' dtype; they compute in `precision`."""
        if self.precision is None:
            return layers(inputs.to(self._dtype))
        with self.cast(inputs.device):
            return layers(inputs).to(self._dtype)

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    def cast(self, device: torch.device) -> torch.autocast:
        """A context in which operations on `device` compute in `precision`."""
        return torch.autocast(device.type, self.precision or torch.bfloat16, enabled=self.precision is not None)


Output = TypeVar("Output")


class Network(TorsoNetwork, Generic[Output]):
    """A network that acts: normaliser, torso and, if `network.lstm` asks for one, an LSTM; a subclass has the `heads`."""

    def __init__(
        self, config: NetworkConfig, spec: EnvironmentSpec, hidden_sizes: tuple[int, ...] | None = None
    ) -> None:
        """`hidden_sizes` replace those of `config`; the heads' features have `width` numbers."""
        hidden_sizes = config.hidden_sizes if hidden_sizes is None else hidden_sizes
        super().__init__(build_torso(config, spec, hidden_sizes), spec.input_shape)
        self._spec = spec
        normaliser = PartsNormaliser if spec.parts else ObservationNormaliser
        self.normaliser = normaliser(spec) if config.normalise else None
        self.lstm = nn.LSTMCell(self.width, config.lstm) if config.lstm else None
        self.width = config.lstm or self.width

    def heads(self, features: Tensor, inputs: Tensor) -> Output:
        """The output `[..., A]`, a NamedTuple, for features `[..., width]` of `prepare`d observations `[B, …]`."""
        raise NotImplementedError

    def forward(self, obs: Tensor) -> Output:
        """The output, in the parameters' dtype, for raw observations `[B, *obs_shape]`, each at an episode's start."""
        return self.output(self.prepare(obs))

    def output(self, inputs: Tensor) -> Output:
        """The output for `prepare`d observations, each at an episode's start."""
        return self.step_prepared(inputs, {})[0]

    def step(self, obs: Tensor, state: State) -> tuple[Output, State]:
        """The output for raw observations and the next recurrent state; an empty state starts an episode."""
        return self.step_prepared(self.prepare(obs), state)

    def step_prepared(self, inputs: Tensor, state: State) -> tuple[Output, State]:
        """The output for `prepare`d observations and the next recurrent state; an empty state starts an episode."""
        features, state = self.step_memory(self.lstm, self.features(inputs), state)
        return self.heads(features, inputs), state

    def unroll(
        self, inputs: Tensor, reset: Tensor, state: State, burn_in: int = 0, fresh: Tensor | None = None
    ) -> Output:
        """Outputs `[L, B, A]` for `prepare`d consecutive observations `[L * B, …]`; arguments as in `memory.unroll`."""
        return self.heads(self.unroll_features(inputs, reset, state, burn_in, fresh), inputs)

    def unroll_features(
        self, inputs: Tensor, reset: Tensor, state: State, burn_in: int = 0, fresh: Tensor | None = None
    ) -> Tensor:
        """The features `[L, B, width]` that `unroll` gives to the heads."""
        return self.unroll_memory(self.lstm, self.features(inputs), reset, state, burn_in, fresh)

    def step_memory(self, lstm: nn.LSTMCell | None, features: Tensor, state: State) -> tuple[Tensor, State]:
        """The output of `lstm` `[B, …]` and its next state; without an LSTM `features` and `state`."""
        if lstm is None:
            return features, state
        state = memory.step(lstm, self.run(functools.partial(memory.input_gates, lstm), features), state)
        return state["hidden"], state

    def unroll_memory(
        self,
        lstm: nn.LSTMCell | None,
        features: Tensor,
        reset: Tensor,
        state: State,
        burn_in: int = 0,
        fresh: Tensor | None = None,
    ) -> Tensor:
        """The outputs of `lstm` `[L, B, …]` for `features` `[L * B, …]`; without an LSTM the features.

        `reset` `[L, B]` and the arguments after it are as in `memory.unroll`.
        """
        features = features.view(*reset.shape, features.shape[-1])  # B may be 0
        if lstm is None:
            return features
        gates = self.run(functools.partial(memory.input_gates, lstm), features)
        return memory.unroll(lstm, gates, reset, state, burn_in, fresh)

    # ── observations ──

    def prepare(self, obs: Tensor | Mapping[str, Tensor]) -> Tensor:
        """Normalises and converts raw observations `[B, *obs_shape]` of any dtype for the torso, `[B, *input_shape]`.

        Observations with parts may be unpacked, `[B, *obs_shape]` of each part by its name.
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
        newest = slice(-self._spec.num_choices, None)
        masks = [parts[MASK][:, newest].ne(0).to(dtype)] if self._spec.has_masks else []
        return torch.cat([*(part.flatten(1) for part in prepared), *masks], -1)

    def observe(self, planes: Tensor) -> None:
        """Adds the raw planes of consecutive steps `[L, N, *plane]` to the statistics, if the network has any."""
        if self.normaliser:
            self.normaliser.observe(planes)

    # ── action masks ──

    def forbid(self, logits: Tensor, inputs: Tensor) -> Tensor:
        """Masks illegal choices in logits `[..., choices]`, which other columns may follow, of `prepare`d observations."""
        if not self._spec.has_masks:
            return logits
        others = logits.shape[-1] - self._spec.num_choices
        return forbid(logits, pad(self._legal(inputs), (0, others), value=True).view_as(logits))

    def forbid_combinations(self, values: Tensor, inputs: Tensor) -> Tensor:
        """Masks illegal actions in values `[..., A]` of all joint actions."""
        if not self._spec.has_masks:
            return values
        legal = legal_combinations(self._legal(inputs), self._spec.actions.branches)
        return forbid(values, legal.view_as(values))

    def _legal(self, inputs: Tensor) -> Tensor:
        return inputs[:, -self._spec.num_choices :] > 0.5


AnyNetwork = TypeVar("AnyNetwork", bound=TorsoNetwork)


def to_train(network: AnyNetwork, config: RunConfig, device: torch.device) -> AnyNetwork:
    """`network` on the learner's `device`, in the precision and the memory format for training."""
    network = network.to(device)
    put_channels_innermost(network)
    network.compute_in(config.learner.precision, device)
    return network
