from __future__ import annotations

import pytest
import torch

from apex_acer.config import NetworkConfig
from apex_acer.networks.critics import Critics
from apex_acer.protocol.actions import Box
from apex_acer.protocol.specification import EnvironmentSpec


def critics(num: int = 2, *, layer_norm: bool = False) -> Critics:
    torch.manual_seed(0)
    bounds = Box((-1.0,) * 2, (1.0,) * 2, (2,), "float32")
    config = NetworkConfig(hidden_sizes=(8, 8), layer_norm=layer_norm)
    return Critics(config, EnvironmentSpec((3,), "float32", bounds, 1, False, 1, (3,)), num)


def test_hidden_layers_of_each_critic_are_normalised() -> None:
    network = critics(3, layer_norm=True).double()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter)
    inputs, action = torch.randn(5, 3).double(), torch.rand(5, 2).double()
    found = network(inputs, action)
    assert len(critics().state_dict()) + 4 == len(network.state_dict())
    for number, q_values in enumerate(found):
        x = torch.cat([inputs, action], -1)
        for layer in (0, 1):
            x = x @ network.weights[layer][number] + network.biases[layer][number]
            scale, shift = network.norm_weights[layer][number, 0], network.norm_biases[layer][number, 0]
            x = torch.nn.functional.layer_norm(x, (8,), scale, shift).relu()
        x = x @ network.weights[2][number] + network.biases[2][number]
        torch.testing.assert_close(q_values, x.squeeze(-1), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_critics_evaluate_as_they_learn_but_only_actions_get_a_gradient(layer_norm: bool) -> None:
    network = critics(layer_norm=layer_norm)
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
