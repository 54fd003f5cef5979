from __future__ import annotations

import functools

import pytest
import torch

from apex_acer.algorithms.on_policy.settings import PpoConfig
from apex_acer.algorithms.sac.settings import SacConfig
from apex_acer.config import NetworkConfig
from apex_acer.networks.critics import Critics, SquashedGaussian
from apex_acer.networks.images import require_image, require_vectors
from apex_acer.protocol.actions import Box
from apex_acer.protocol.specification import EnvironmentSpec, Part
from tests.conftest import config_error


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


BOX = Box((-1.0,) * 2, (1.0,) * 2, (2,), "float32")
IMAGES = EnvironmentSpec((1, 12, 12), "uint8", BOX, 2, False, 1, (12, 12))
VECTORS = EnvironmentSpec((3,), "float32", BOX, 1, False, 1, (3,))
PARTS = EnvironmentSpec.of_parts(
    (Part("image", (1, 12, 12), "uint8", False, (12, 12)), Part("vector", (3,), "float32", False, (3,))), BOX, 1, 1
)
OWN = f"{__name__}:OwnTorso"


class OwnTorso(torch.nn.Module):
    """A user's torso with a parameter and seven features."""

    def __init__(self, config: NetworkConfig, spec: EnvironmentSpec) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(7))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.flatten(1)[:, :1] * self.scale


@pytest.mark.parametrize(
    ("spec", "torso", "width"),
    [
        (IMAGES, "auto", 1024),
        (IMAGES, "conv", 1024),
        (IMAGES, OWN, 7),
        (PARTS, "auto", 1027),
        (IMAGES, "mlp", 0),
        (VECTORS, "auto", 0),
        (VECTORS, OWN, 0),
    ],
)
def test_actor_and_critics_see_the_features_of_one_encoder_of_images(
    spec: EnvironmentSpec, torso: str, width: int
) -> None:
    torch.manual_seed(0)
    config = NetworkConfig(torso=torso, hidden_sizes=(16, 8))
    actor = SquashedGaussian(config, spec)
    network = Critics(config, spec, 2, actor.encoder_width)
    inputs = torch.rand(5, *spec.input_shape)
    encoded = actor.encode(inputs)
    assert actor.encoder_width == width
    assert encoded.shape[1:] == ((width,) if width else spec.input_shape)
    assert (actor.encoder is None) == (not width) == torch.equal(encoded, inputs)
    assert network(encoded, torch.rand(5, 2)).shape == (2, 5)
    if width:
        assert [tuple(weight.shape) for weight in network.weights] == [(2, 52, 16), (2, 16, 8), (2, 8, 1)]
        assert not any(isinstance(module, (torch.nn.Conv2d, OwnTorso)) for module in network.modules())
        seen = network.torso(encoded)
        assert seen.abs().max() < 1
        torch.testing.assert_close(seen.atanh().mean(-1), torch.zeros(5), rtol=0, atol=1e-5)
    for one, other in zip(actor.output(inputs), actor.decide(encoded), strict=True):
        assert torch.equal(one, other)


def test_batch_normalisation_needs_vectors() -> None:
    require_vectors(SacConfig(batch_norm=True), VECTORS)
    require_vectors(SacConfig(), IMAGES)
    require_vectors(PpoConfig(), IMAGES)
    for spec in (IMAGES, PARTS):
        message = config_error(functools.partial(require_vectors, SacConfig(batch_norm=True), spec))
        assert message.startswith("algorithm.batch_norm: True is not allowed; the observations are ")
        assert message.endswith("it needs vectors; give False")


def test_only_images_are_shifted() -> None:
    require_image(SacConfig(image_shift=4), IMAGES)
    require_image(SacConfig(), VECTORS)
    require_image(PpoConfig(), VECTORS)
    message = config_error(lambda: require_image(SacConfig(image_shift=4), VECTORS))
    allowed = "the observations are vectors of 3 numbers, float32, it needs images; give 0"
    assert message == f"algorithm.image_shift: 4 is not allowed; {allowed}"
    assert "image_shift" in config_error(lambda: require_image(SacConfig(image_shift=4), PARTS))
