from __future__ import annotations

import torch

from apex_acer.config import NetworkConfig
from apex_acer.networks.critics import Critics
from apex_acer.protocol.actions import Box
from apex_acer.protocol.specification import EnvironmentSpec


def critics(num: int = 2) -> Critics:
    torch.manual_seed(0)
    bounds = Box((-1.0,) * 2, (1.0,) * 2, (2,), "float32")
    return Critics(NetworkConfig(hidden_sizes=(8, 8)), EnvironmentSpec((3,), "float32", bounds, 1, False, 1, (3,)), num)


def test_critics_evaluate_as_they_learn_but_only_actions_get_a_gradient() -> None:
    network = critics()
    inputs, action = torch.randn(5, 3), torch.rand(5, 2, requires_grad=True)
    q_values = network.evaluate(inputs, action)
    torch.testing.assert_close(q_values, network(inputs, action), rtol=0, atol=0)
    torch.testing.assert_close(network.evaluate(inputs, action, 1), q_values[:1], rtol=1e-5, atol=1e-6)
    (wanted,) = torch.autograd.grad(network(inputs, action).sum(), action)
    torch.autograd.backward(q_values.sum())
    torch.testing.assert_close(action.grad, wanted, rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in network.parameters())


def test_evaluating_leaves_the_critics_to_the_other_parts_of_a_batch() -> None:
    # parts of a batch are computed in threads that share the critics: what one evaluates, another learns at that moment
    network = critics()
    inputs, action = torch.randn(5, 3), torch.rand(5, 2)
    meanwhile: list[torch.nn.Parameter] = []
    network.activation.register_forward_hook(lambda *_: meanwhile.extend(network.parameters()))
    network.evaluate(inputs, action)
    assert meanwhile
    assert {id(parameter) for parameter in meanwhile} == {id(parameter) for parameter in network.parameters()}
    assert all(parameter.requires_grad for parameter in meanwhile)
