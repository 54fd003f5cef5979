"""The optimizer: clips the gradient, takes the step, and skips steps that are not finite."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from apex_acer.algorithms.algorithm import Group
from apex_acer.config import ConfigError, OptimizerConfig, RunConfig, require
from apex_acer.networks.speed import without_compiler
from apex_acer.system import imports

STATE = {"adam": {"step", "exp_avg", "exp_avg_sq"}, "rmsprop": {"step", "square_avg"}}  # torch's names
PREFIX, SETTING = "optimizer.", "setting."  # of all saved names, and of those of settings that have changed
PLAIN = (bool, int, float, str, type(None))


class Optimizer:
    """The optimizers of an algorithm's groups of parameters, with the learning rate's schedule over environment steps.

    All parameters and their gradients become views of one vector, of which each group has a part. So clipping and the step
    are a few operations, however many layers there are. For a small network the number of operations is most of their cost.
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
        """The learning rate of groups that have none of their own, when the run has made `env_steps`."""
        return self._config.learning_rate * self._scheduled(env_steps)

    def _scheduled(self, env_steps: int) -> float:
        """The share of the learning rates that the schedule leaves."""
        if self._config.schedule == "constant":
            return 1.0
        final = self._config.final_fraction
        return final + (1 - final) * max(0.0, 1 - env_steps / self._schedule_end)

    def backward(self, loss: Tensor) -> None:
        """Leaves the gradient of `loss`, and nothing else, in the parameters' `.grad`."""
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
        norms = [group.norm() for group in self._groups.values()]
        norm = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
        finite = math.isfinite(norm + loss)
        if finite:
            share = self._scheduled(env_steps)
            for (name, group), own_norm in zip(self._groups.items(), norms, strict=True):
                if name in due:
                    group.step(own_norm, share)
        return norm, finite

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that steps change, such as moments, by group and name; a group has none before its first step."""
        return {f"{PREFIX}{name}": value for name, value in self._state() if isinstance(value, Tensor)}

    def numbers(self) -> dict[str, Any]:
        """The plain values that steps change; raises `ConfigError` if there is anything else, which cannot be saved."""
        numbers = {name: value for name, value in self._state() if not isinstance(value, Tensor)}
        for name, value in numbers.items():
            kept = f"it keeps {name.partition('.')[2]} as {type(value).__name__}; have it keep tensors and numbers"
            require(isinstance(value, PLAIN), "optimizer.name", self._config.name, kept)
        return numbers

    def load(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any] | None = None) -> None:
        """Continues from saved `tensors` and `numbers`; raises `ConfigError` if they are of another optimizer or network."""
        state = {name.removeprefix(PREFIX): t for name, t in tensors.items() if name.startswith(PREFIX)}
        state |= dict(numbers or {})
        for name, group in self._groups.items():
            own = f"{name}."
            group.load(name, {key.removeprefix(own): value for key, value in state.items() if key.startswith(own)})

    def _state(self) -> Iterator[tuple[str, Any]]:
        for prefix, group in self._groups.items():
            for name, value in group.state().items():
                yield f"{prefix}.{name}", value


class _GroupOptimizer:
    """RMSProp, Adam or a user's own optimizer of one group's part of the vector."""

    def __init__(self, config: OptimizerConfig, group: Group, vector: Tensor, gradient: Tensor) -> None:
        self._config, self._gradient, self.every = config, gradient, group.every
        self._learning_rate = config.learning_rate if group.learning_rate is None else group.learning_rate
        self._vector = nn.Parameter(vector)
        self._vector.grad = gradient
        self._optimizer = _build(config, self._vector)
        self._settings: dict[str, Any] = self._optimizer.param_groups[0]
        self._given = dict(self._settings)
        self._step = without_compiler(self._optimizer) if config.name in STATE else self._optimizer.step

    def norm(self) -> Tensor:
        norm: Tensor = torch.linalg.vector_norm(self._gradient)
        return norm

    def step(self, norm: Tensor, share: float) -> None:
        self._gradient.mul_((self._config.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        self._settings["lr"] = self._learning_rate * share
        self._step()

    def state(self) -> dict[str, Any]:
        """What steps change: the state, and the settings that differ from those given."""
        settings = {name: value for name, value in self._settings.items() if name not in ("params", "lr")}
        changed = {n: v for n, v in settings.items() if isinstance(v, Tensor) or v is not self._given.get(n)}
        return dict(self._optimizer.state[self._vector]) | {f"{SETTING}{name}": v for name, v in changed.items()}

    def load(self, name: str, state: Mapping[str, Any]) -> None:
        if self._config.name in STATE:
            self._check(name, state)
        on_device = {n: v.to(self._vector.device) if isinstance(v, Tensor) else v for n, v in state.items()}
        settings = {name: value for name, value in on_device.items() if name.startswith(SETTING)}
        self._settings.update({name.removeprefix(SETTING): value for name, value in settings.items()})
        self._optimizer.state[self._vector] = {n: value for n, value in on_device.items() if n not in settings}

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


def _try_out(config: RunConfig) -> None:
    layer = nn.Linear(4, 2)
    trial = Optimizer(config, {"network": Group(list(layer.parameters()))})
    trial.backward(layer(torch.ones(1, 4)).sum())
    trial.step(torch.zeros(()), 0, trial.due(0))
    trial.numbers()


def _build(settings: OptimizerConfig, vector: nn.Parameter) -> torch.optim.Optimizer:
    rate, decay, eps = settings.learning_rate, settings.decay, settings.eps
    if settings.name == "adam":
        return torch.optim.Adam([vector], rate, (0.9, decay), eps, fused=True)
    if settings.name == "rmsprop":
        return torch.optim.RMSprop([vector], rate, decay, eps, foreach=False)
    optimizer = imports.load("optimizer.name", settings.name)([vector], settings)
    fits = isinstance(optimizer, torch.optim.Optimizer) and len(optimizer.param_groups) == 1
    require(fits, "optimizer.name", settings.name, "have it return a torch.optim.Optimizer with one group")
    return optimizer  # type: ignore[no-any-return]


def flatten(parameters: Sequence[nn.Parameter]) -> tuple[Tensor, Tensor]:
    """One vector of `parameters` and one of their gradients, of which both become views.

    Each parameter keeps its memory format. Nothing may move or convert the network afterwards.
    """
    vector = parameters[0].new_empty(sum(parameter.numel() for parameter in parameters)).detach()
    gradient = torch.zeros_like(vector)
    start = 0
    for parameter in parameters:
        place = parameter.shape, parameter.stride(), start
        view = vector.as_strided(*place)
        view.copy_(parameter.detach())
        parameter.data, parameter.grad = view, gradient.as_strided(*place)
        start += parameter.numel()
    return vector, gradient
