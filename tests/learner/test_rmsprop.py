from __future__ import annotations

import numpy as np
import torch
from torch import nn

from apex_acer.algorithms.algorithm import Group
from apex_acer.config import OptimizerConfig, RunConfig
from apex_acer.learner.optimizer import Optimizer


def make(parameter: nn.Parameter) -> Optimizer:
    settings = OptimizerConfig("rmsprop_tf", learning_rate=0.1, eps=1e-2, decay=0.9, max_grad_norm=1e9)
    return Optimizer(RunConfig(optimizer=settings), {"network": Group([parameter])})


def train(optimizer: Optimizer, parameter: nn.Parameter, gradients: torch.Tensor) -> None:
    for gradient in gradients:
        loss = (parameter * gradient).sum()
        optimizer.backward(loss)
        optimizer.step(loss.detach(), 0, optimizer.due(0))


def test_steps_are_those_of_the_equations_also_after_a_resume() -> None:
    """Of `tf.compat.v1.train.RMSPropOptimizer` without momentum, written out."""
    gradients = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values, mean_square = np.array([3.0, -2.0, 0.5]), np.ones(3)
    parameter = nn.Parameter(torch.tensor(values))
    optimizer = make(parameter)
    train(optimizer, parameter, gradients[:4])
    resumed = make(parameter)
    resumed.load({name: tensor.clone() for name, tensor in optimizer.tensors().items()})
    train(resumed, parameter, gradients[4:])
    for gradient in gradients.numpy():
        mean_square = 0.9 * mean_square + 0.1 * gradient**2
        values = values - 0.1 * gradient / np.sqrt(mean_square + 1e-2)
    np.testing.assert_allclose(parameter.detach().numpy(), values, rtol=1e-12)
