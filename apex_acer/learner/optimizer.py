"""The optimizer: clips the gradient, takes the step, and skips steps that are not finite."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from apex_acer.config import ConfigError, OptimizerConfig, RunConfig, imports, require

# torch would import its compiler, which takes a second, only to exempt this method from it
_add: Any = torch.optim.Optimizer.add_param_group
_add = getattr(_add, "__wrapped__", _add)
_add.__dynamo_disable = _add

STATE = {"adam": {"step", "exp_avg", "exp_avg_sq"}, "rmsprop": {"step", "square_avg"}}  # torch's names
PREFIX, GROUP = "optimizer.", "group."  # prefixes of saved tensors' names, and of those that are the group's settings
PLAIN = (bool, int, float, str, type(None))


class Optimizer:
    """RMSProp, Adam or a user's own optimizer of `network`, with the learning rate's schedule over environment steps.

    The network's parameters and their gradients become views of one vector, so clipping and the step are a few
    operations, however many layers there are. For a small network the number of operations is most of their cost.
    """

    def __init__(self, config: RunConfig, network: nn.Module) -> None:
        self._config = config.optimizer
        self._schedule_end = config.schedule_end
        self._vector, self.gradient = flatten(network)
        self._optimizer = _build(self._config, self._vector)
        self._group: dict[str, Any] = self._optimizer.param_groups[0]
        self._given = dict(self._group)
        self._step = _without_compiler(self._optimizer) if self._config.name in STATE else self._optimizer.step

    def learning_rate(self, env_steps: int) -> float:
        """The learning rate when the run has made `env_steps`."""
        if self._config.schedule == "constant":
            return self._config.learning_rate
        final = self._config.final_fraction
        return self._config.learning_rate * (final + (1 - final) * max(0.0, 1 - env_steps / self._schedule_end))

    def backward(self, loss: Tensor) -> None:
        """Leaves the gradient of `loss`, and nothing else, in the parameters' `.grad`."""
        self.gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]

    def step(self, loss: Tensor, env_steps: int) -> tuple[Tensor, bool]:
        """One step against the gradient of `loss` that is in the parameters' `.grad`.

        Returns:
            The gradient's norm before clipping, and whether the step was taken.
        """
        norm = torch.linalg.vector_norm(self.gradient)
        finite = math.isfinite(norm + loss)
        if finite:
            self.gradient.mul_((self._config.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
            self._group["lr"] = self.learning_rate(env_steps)
            self._step()
        return norm, finite

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that steps change, such as moments, by name; empty before the first step."""
        return {f"{PREFIX}{name}": value for name, value in self._state().items() if isinstance(value, Tensor)}

    def numbers(self) -> dict[str, Any]:
        """The plain values that steps change; raises `ConfigError` if there is anything else, which cannot be saved."""
        numbers = {name: value for name, value in self._state().items() if not isinstance(value, Tensor)}
        for name, value in numbers.items():
            kept = f"it keeps {name} as {type(value).__name__}; have it keep tensors and numbers"
            require(isinstance(value, PLAIN), "optimizer.name", self._config.name, kept)
        return numbers

    def load(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any] | None = None) -> None:
        """Continues from saved `tensors` and `numbers`; raises `ConfigError` if they are of another optimizer or network."""
        moments = {name.removeprefix(PREFIX): t for name, t in tensors.items() if name.startswith(PREFIX)}
        if self._config.name in STATE:
            self._check(moments)
        state = {name: tensor.to(self._vector.device) for name, tensor in moments.items()} | dict(numbers or {})
        settings = {name: value for name, value in state.items() if name.startswith(GROUP)}
        self._group.update({name.removeprefix(GROUP): value for name, value in settings.items()})
        self._optimizer.state[self._vector] = {n: value for n, value in state.items() if n not in settings}

    def _state(self) -> dict[str, Any]:
        """What steps change: the state, and the settings of the group that differ from those given."""
        settings = {name: value for name, value in self._group.items() if name not in ("params", "lr")}
        changed = {n: v for n, v in settings.items() if isinstance(v, Tensor) or v is not self._given.get(n)}
        return dict(self._optimizer.state[self._vector]) | {f"{GROUP}{name}": v for name, v in changed.items()}

    def _check(self, moments: Mapping[str, Tensor]) -> None:
        if moments and moments.keys() != STATE[self._config.name]:
            raise ConfigError(f"optimizer.name: {self._config.name!r} has no {', '.join(sorted(moments))}")
        for name, tensor in moments.items():
            wanted = [] if name == "step" else list(self._vector.shape)
            if list(tensor.shape) != wanted:
                raise ConfigError(f"optimizer.{name}: is {list(tensor.shape)}, this network has {wanted}")


def make_optimizer(config: RunConfig, network: nn.Module) -> Optimizer:
    """The optimizer of `network`; a user's own is first tried on a small layer, and raises `ConfigError` if that fails."""
    name = config.optimizer.name
    if name not in STATE:
        imports.attempt("optimizer.name", name, lambda: _try_out(config))
    return Optimizer(config, network)


def _try_out(config: RunConfig) -> None:
    layer = nn.Linear(4, 2)
    trial = Optimizer(config, layer)
    trial.backward(layer(torch.ones(1, 4)).sum())
    trial.step(torch.zeros(()), 0)
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


def _without_compiler(optimizer: torch.optim.Optimizer) -> Callable[[], Any]:
    """The optimizer's step without torch's wrapper, whose first call would import the compiler."""
    step = functools.partial(inspect.unwrap(type(optimizer).step), optimizer)
    return torch.no_grad()(step)


def trained(network: nn.Module) -> list[nn.Parameter]:
    """The parameters that are trained: all but those that a user's torso has frozen."""
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


def flatten(network: nn.Module) -> tuple[nn.Parameter, Tensor]:
    """One vector of `network`'s trained parameters and one of their gradients `[parameters]`, of which both become views.

    Each parameter keeps its memory format. Nothing may move or convert the network afterwards.
    """
    parameters = trained(network)
    vector = nn.Parameter(parameters[0].new_empty(sum(parameter.numel() for parameter in parameters)))
    gradient = vector.grad = torch.zeros_like(vector)
    start = 0
    for parameter in parameters:
        place = parameter.shape, parameter.stride(), start
        view = vector.detach().as_strided(*place)
        view.copy_(parameter.detach())
        parameter.data, parameter.grad = view, gradient.as_strided(*place)
        start += parameter.numel()
    return vector, gradient
