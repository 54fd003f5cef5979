"""The optimizer: clips the gradient, takes the step, and skips steps that are not finite."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from apex_acer.algorithms.algorithm import Group
from apex_acer.config import ConfigError, OptimizerConfig, RunConfig, require
from apex_acer.learner.rmsprop import RMSpropTF
from apex_acer.networks.speed import without_compiler
from apex_acer.system import imports

STATE = {  # torch's names
    "adam": {"step", "exp_avg", "exp_avg_sq"},
    "rmsprop": {"step", "square_avg"},
    "rmsprop_tf": {"square_avg"},
}
PREFIX, SETTING = "optimizer.", "setting."  # of all saved names, and of those of settings that have changed
PLAIN = (bool, int, float, str, type(None))


class Optimizer:
    """The optimizers of an algorithm's groups of parameters, with the learning rate's schedule over environment steps.

    All parameters become views of one vector, and their gradients of another; each group has a part of both. So clipping and
    the step are a few operations, whose number is most of their cost if the network is small.
    """

    def __init__(self, config: RunConfig, groups: Mapping[str, Group]) -> None:
        self._config, self._schedule_end = config.optimizer, config.schedule_end
        parameters = [parameter for group in groups.values() for parameter in group.parameters]
        vector, self.gradient = flatten(parameters)
        self.parameters = parameters
        """The parameters in the order of the vector."""
        sizes = [sum(parameter.numel() for parameter in group.parameters) for group in groups.values()]
        parts = zip(torch.split(vector, sizes), torch.split(self.gradient, sizes), strict=True)
        self._groups = {
            name: _GroupOptimizer(self._config, group, *part)
            for (name, group), part in zip(groups.items(), parts, strict=True)
        }

    def learning_rate(self, env_steps: int) -> float:
        """The learning rate when the run has made `env_steps`."""
        rate, final = self._config.learning_rate, self._config.final_fraction
        if self._config.schedule == "constant":
            return rate
        return rate * (final + (1 - final) * max(0.0, 1 - env_steps / self._schedule_end))

    def backward(self, loss: Tensor) -> None:
        """Replaces the parameters' `.grad` by the gradient of `loss`."""
        self.gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]

    def due(self, updates: int) -> set[str]:
        """The names of the groups that take a step after `updates` updates."""
        return {name for name, group in self._groups.items() if updates % group.every == 0}

    def step(self, loss: Tensor, env_steps: int, due: Collection[str]) -> tuple[Tensor, bool]:
        """One step of the groups that are `due`, against the gradient in the parameters' `.grad`.

        Returns:
            The gradient's norm before clipping, and whether the step was taken: `loss` and the gradient are finite.
        """
        norms: list[Tensor] = [torch.linalg.vector_norm(group.gradient) for group in self._groups.values()]
        norm = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
        finite = math.isfinite(norm + loss)
        if finite:
            rate = self.learning_rate(env_steps)
            for (name, group), group_norm in zip(self._groups.items(), norms, strict=True):
                if name in due:
                    group.step(group_norm, rate)
        return norm, finite

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that steps change, such as moments, by group and name; a group has none before its first step."""
        return {f"{PREFIX}{name}": value for name, value in self._state().items() if isinstance(value, Tensor)}

    def numbers(self) -> dict[str, Any]:
        """The plain values that steps change; raises `ConfigError` if there is anything else, which cannot be saved."""
        numbers = {name: value for name, value in self._state().items() if not isinstance(value, Tensor)}
        for name, value in numbers.items():
            kept = f"it keeps {name.partition('.')[2]} as {type(value).__name__}; have it keep tensors and numbers"
            require(isinstance(value, PLAIN), "optimizer.name", self._config.name, kept)
        return numbers

    def load(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any] | None = None) -> None:
        """Continues from saved `tensors` and `numbers`; raises `ConfigError` if they are of another optimizer or network."""
        state = _within(tensors, PREFIX) | dict(numbers or {})
        for name, group in self._groups.items():
            group.load(name, _within(state, f"{name}."))

    def _state(self) -> dict[str, Any]:
        groups = self._groups.items()
        return {f"{prefix}.{name}": value for prefix, group in groups for name, value in group.state().items()}


class _GroupOptimizer:
    """RMSProp, Adam or a user's own optimizer of one group's part of the vector."""

    def __init__(self, config: OptimizerConfig, group: Group, vector: Tensor, gradient: Tensor) -> None:
        self._config, self.gradient, self.every = config, gradient, group.every
        self._vector = nn.Parameter(vector)
        self._vector.grad = gradient
        self._optimizer = _build(config, self._vector)
        self._settings: dict[str, Any] = self._optimizer.param_groups[0]
        self._first_settings = dict(self._settings)
        self._step = without_compiler(self._optimizer) if config.name in STATE else self._optimizer.step

    def step(self, norm: Tensor, learning_rate: float) -> None:
        self.gradient.mul_((self._config.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        self._settings["lr"] = learning_rate
        self._step()

    def state(self) -> dict[str, Any]:
        """The values that steps change: the state, and settings that are not what they were at first."""
        changed = {
            f"{SETTING}{name}": value
            for name, value in self._settings.items()
            if name not in ("params", "lr")
            and (isinstance(value, Tensor) or value is not self._first_settings.get(name))
        }
        return dict(self._optimizer.state[self._vector]) | changed

    def load(self, name: str, state: Mapping[str, Any]) -> None:
        if self._config.name in STATE:
            self._check(name, state)
        on_device = {n: v.to(self._vector.device) if isinstance(v, Tensor) else v for n, v in state.items()}
        self._settings.update(_within(on_device, SETTING))
        self._optimizer.state[self._vector] = {n: v for n, v in on_device.items() if not n.startswith(SETTING)}

    def _check(self, group: str, state: Mapping[str, Any]) -> None:
        if state and state.keys() != STATE[self._config.name]:
            raise ConfigError(f"optimizer.name: {self._config.name!r} has no {', '.join(sorted(state))}")
        for name, tensor in state.items():
            wanted = [] if name == "step" else list(self._vector.shape)
            if list(tensor.shape) != wanted:
                raise ConfigError(f"optimizer.{group}.{name}: is {list(tensor.shape)}, this network has {wanted}")


def make_optimizer(config: RunConfig, groups: Mapping[str, Group]) -> Optimizer:
    """The optimizer of `groups`; a user's own is first tried on a small layer, and raises `ConfigError` if that fails."""
    name = config.optimizer.name
    if name not in STATE:
        imports.attempt("optimizer.name", name, lambda: _try_out(config))
    return Optimizer(config, groups)


def _within(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The values whose names begin with `prefix`, by the rest of the name."""
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def _try_out(config: RunConfig) -> None:
    layer = nn.Linear(4, 2)
    trial = Optimizer(config, {"network": Group(list(layer.parameters()))})
    trial.backward(layer(torch.ones(1, 4)).sum())
    trial.step(torch.zeros(()), 0, trial.due(0))
    trial.numbers()


def _build(settings: OptimizerConfig, vector: nn.Parameter) -> torch.optim.Optimizer:
    rate, decay, eps = settings.learning_rate, settings.decay, settings.eps
    if settings.name == "adam":
        return torch.optim.Adam([vector], rate, (settings.beta1, decay), eps, fused=True)
    if settings.name == "rmsprop":
        return torch.optim.RMSprop([vector], rate, decay, eps, foreach=False)
    if settings.name == "rmsprop_tf":
        return RMSpropTF([vector], rate, decay, eps)
    optimizer = imports.load("optimizer.name", settings.name)([vector], settings)
    fits = isinstance(optimizer, torch.optim.Optimizer) and len(optimizer.param_groups) == 1
    require(fits, "optimizer.name", settings.name, "have it return a torch.optim.Optimizer with one group")
    return optimizer  # type: ignore[no-any-return]


def flatten(parameters: Sequence[nn.Parameter]) -> tuple[Tensor, Tensor]:
    """One vector of `parameters`, of which there may be none, and one of their gradients, which become views of them.

    Each parameter keeps its memory format. Nothing may move or convert the network afterwards.
    """
    size = sum(parameter.numel() for parameter in parameters)
    vector = parameters[0].new_empty(size).detach() if parameters else torch.empty(0)
    gradient = torch.zeros_like(vector)
    start = 0
    for parameter in parameters:
        geometry = parameter.shape, parameter.stride(), start
        view = vector.as_strided(*geometry)
        view.copy_(parameter.detach())
        parameter.data, parameter.grad = view, gradient.as_strided(*geometry)
        start += parameter.numel()
    return vector, gradient
