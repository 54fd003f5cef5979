"""RMSProp as TensorFlow 1 writes it, with which published Atari results were trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class RMSpropTF(torch.optim.Optimizer):
    """RMSProp whose mean square s starts at one, and with ε inside the root: Δθ = −η g / √(s + ε).

    The first steps are η g; where s starts at zero, as in torch, they are 10 η for each parameter, however small g is.
    """

    def __init__(self, params: Iterable[Tensor], lr: float, alpha: float, eps: float) -> None:
        super().__init__(params, {"lr": lr, "alpha": alpha, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Takes a step against each parameter's `.grad`; `closure` is not called."""
        for group in self.param_groups:
            for parameter in group["params"]:
                state, gradient = self.state[parameter], parameter.grad
                if "square_avg" not in state:
                    state["square_avg"] = torch.ones_like(parameter)
                mean_square = state["square_avg"].lerp_(gradient.square(), 1 - group["alpha"])
                parameter.addcdiv_(gradient, (mean_square + group["eps"]).sqrt_(), value=-group["lr"])
