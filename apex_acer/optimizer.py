"""From a loss to a step: gradients clipped before it, steps that are not finite skipped."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from apex_acer.config import ConfigError, RunConfig

# torch imports its compiler, which takes a second, to exempt this method from it; the compiler never sees this one
_add: Any = torch.optim.Optimizer.add_param_group
_add = getattr(_add, "__wrapped__", _add)
_add.__dynamo_disable = _add

STATE = {"adam": {"step", "exp_avg", "exp_avg_sq"}, "rmsprop": {"step", "square_avg"}}  # torch's names


class Optimizer:
    """RMSProp or Adam on `network`, with the learning rate's schedule over environment steps.

    The network's parameters and their gradients become views of one vector: clipping and the step are then a few
    operations, however many layers there are, which for a small network is most of their cost.
    """

    def __init__(self, config: RunConfig, network: nn.Module) -> None:
        self._config = config.optimizer
        self._budget = config.stop.env_steps
        self._vector, self._gradient = flatten(network)
        settings = self._config
        self._optimizer: torch.optim.Optimizer
        if settings.name == "adam":
            betas = (0.9, settings.decay)
            self._optimizer = torch.optim.Adam([self._vector], settings.learning_rate, betas, settings.eps, fused=True)
        else:
            self._optimizer = torch.optim.RMSprop(
                [self._vector], settings.learning_rate, settings.decay, settings.eps, foreach=False
            )

    def learning_rate(self, env_steps: int) -> float:
        """The step size once `env_steps` were accepted."""
        if self._config.schedule == "constant":
            return self._config.learning_rate
        final = self._config.final_fraction
        return self._config.learning_rate * (final + (1 - final) * max(0.0, 1 - env_steps / self._budget))

    def backward(self, loss: Tensor) -> None:
        """Leaves the gradient of `loss`, and nothing else, in the parameters' `.grad`."""
        self._gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]

    def step(self, loss: Tensor, env_steps: int) -> tuple[Tensor, bool]:
        """One step against the gradient of `loss` that is in the parameters' `.grad`.

        Returns:
            The gradient's norm before clipping, and whether the step was taken.
        """
        norm = torch.linalg.vector_norm(self._gradient)
        finite = math.isfinite(norm + loss)
        if finite:
            self._gradient.mul_((self._config.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
            for group in self._optimizer.param_groups:
                group["lr"] = self.learning_rate(env_steps)
            self._optimizer.step()
        return norm, finite

    def tensors(self) -> dict[str, Tensor]:
        """The moments, by name; empty before the first step."""
        return {f"optimizer.{name}": tensor for name, tensor in self._optimizer.state[self._vector].items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Goes on from the `tensors` of another; raises `ConfigError` where they are of another kind or network."""
        state = {name.removeprefix("optimizer."): t for name, t in tensors.items() if name.startswith("optimizer.")}
        if state and state.keys() != STATE[self._config.name]:
            raise ConfigError(f"optimizer.name: {self._config.name!r} has no {', '.join(sorted(state))}")
        for name, tensor in state.items():
            wanted = [] if name == "step" else list(self._vector.shape)
            if list(tensor.shape) != wanted:
                raise ConfigError(f"optimizer.{name}: is {list(tensor.shape)}, this network has {wanted}")
        device = self._vector.device
        self._optimizer.state[self._vector] = {name: tensor.to(device) for name, tensor in state.items()}


def flatten(network: nn.Module) -> tuple[nn.Parameter, Tensor]:
    """One vector of all of `network`'s parameters, and that of their gradients; the parameters become views of them.

    Each keeps its order in memory. Nothing may move or convert the network afterwards.
    """
    parameters = list(network.parameters())
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
