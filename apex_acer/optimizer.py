"""From a loss to a step: gradients clipped before it, steps that are not finite skipped."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from apex_acer.config import RunConfig


class Optimizer:
    """RMSProp or Adam on `network`, with the learning rate's schedule over environment steps."""

    def __init__(self, config: RunConfig, network: nn.Module) -> None:
        self._config = config.optimizer
        self._budget = config.stop.env_steps
        self._parameters = list(network.parameters())
        settings = self._config
        self._optimizer: torch.optim.Optimizer
        if settings.name == "adam":
            betas = (0.9, settings.decay)
            self._optimizer = torch.optim.Adam(self._parameters, settings.learning_rate, betas, settings.eps)
        else:
            self._optimizer = torch.optim.RMSprop(
                self._parameters, settings.learning_rate, settings.decay, settings.eps, foreach=True
            )

    def learning_rate(self, env_steps: int) -> float:
        """The step size once `env_steps` were accepted."""
        if self._config.schedule == "constant":
            return self._config.learning_rate
        final = self._config.final_fraction
        return self._config.learning_rate * (final + (1 - final) * max(0.0, 1 - env_steps / self._budget))

    def step(self, loss: Tensor, env_steps: int) -> tuple[Tensor, bool]:
        """Minimises `loss` by one step; returns the gradient norm before clipping and whether the step was taken."""
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self._parameters, self._config.max_grad_norm)
        finite = bool(torch.isfinite(norm + loss.detach()))
        if finite:
            for group in self._optimizer.param_groups:
                group["lr"] = self.learning_rate(env_steps)
            self._optimizer.step()
        return norm, finite
