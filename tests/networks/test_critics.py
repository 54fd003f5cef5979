from __future__ import annotations

import torch

from apex_acer.config import NetworkConfig
from apex_acer.networks.critics import Critics
from apex_acer.protocol.actions import Box
from apex_acer.protocol.specification import EnvironmentSpec


def test_critics_evaluate_as_they_learn_but_only_actions_get_a_gradient() -> None:
    torch.manual_seed(0)
    bounds = Box((-1.0,) * 2, (1.0,) * 2, (2,), "float32")
    spec = EnvironmentSpec((3,), "float32", bounds, 1, False, 1, (3,))
    network = Critics(NetworkConfig(hidden_sizes=(8, 8)), spec, 2)
    inputs, action = torch.randn(5, 3), torch.rand(5, 2, requires_grad=True)
    expected = network(inputs, action)
    (wanted,) = torch.autograd.grad(expected.sum(), action)
    # parts of a batch are computed in threads that share the critics: what one evaluates, another learns at that moment
    meanwhile: list[bool] = []
    network.activation.register_forward_hook(
        lambda *_: meanwhile.append(all(parameter.requires_grad for parameter in network.parameters()))
    )
    q_values = network.evaluate(inputs, action)
    assert meanwhile
    assert all(meanwhile)
    torch.testing.assert_close(q_values, expected, rtol=0, atol=0)
    torch.testing.assert_close(network.evaluate(inputs, action, 1), q_values[:1], rtol=1e-5, atol=1e-6)
    torch.autograd.backward(q_values.sum())
    torch.testing.assert_close(action.grad, wanted, rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in network.parameters())
