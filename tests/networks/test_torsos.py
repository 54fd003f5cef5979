from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from apex_acer.config import NetworkConfig
from apex_acer.networks.discrete import ActorCritic
from apex_acer.networks.torsos import ChannelNorm
from apex_acer.protocol.actions import Discrete
from apex_acer.protocol.specification import EnvironmentSpec
from tests.conftest import config_error

NUM_ACTIONS = 6


def build(plane: tuple[int, ...], stack: int = 1, dtype: str = "uint8", **settings: Any) -> Any:
    torch.manual_seed(0)
    spec = EnvironmentSpec(plane, dtype, Discrete(NUM_ACTIONS, 0), stack, False, 1, plane)
    return ActorCritic(NetworkConfig(**settings), spec)


def kinds(network: Any) -> list[str]:
    return [type(layer).__name__ for layer in network.torso]


def random_bytes(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


@pytest.mark.parametrize(("plane", "stack"), [((1, 10, 10), 1), ((1, 84, 84), 4), ((1, 5, 40), 2), ((3, 36, 36), 1)])
def test_images_of_any_size(plane: tuple[int, ...], stack: int) -> None:
    """Planes become numbers in the parameters' type; bytes are scaled, and floats are not."""
    network, obs = build(plane, stack), random_bytes(2, stack * plane[0], *plane[1:])
    output = network(obs)
    assert "Convolution" in kinds(network)
    scaled = network(obs.float() / 255)
    doubled = network.double()(obs)
    for one, two, three in zip(output, scaled, doubled, strict=True):
        assert (one.shape, one.dtype, three.dtype) == ((2, NUM_ACTIONS), torch.float32, torch.float64)
        torch.testing.assert_close(one, two)
        torch.testing.assert_close(one.double(), three, rtol=1e-4, atol=1e-5)
        assert not torch.equal(three, three.float().double())
    assert not torch.allclose(network(obs.float()).q_values, doubled.q_values)


@pytest.mark.parametrize("stack", [1, 3])
def test_vectors(stack: int) -> None:
    network = build((7,), stack, "float32", hidden_sizes=(32, 16), activation="tanh")
    output = network(torch.randn(5, 7 * stack, generator=torch.Generator().manual_seed(1)))
    assert output.pi_logits.shape == output.q_values.shape == (5, NUM_ACTIONS)
    assert kinds(network) == ["Flatten", "Linear", "Tanh", "Linear", "Tanh"]
    for head in output:  # both train the torso that they share
        (gradient,) = torch.autograd.grad(head.square().sum(), network.torso[1].weight, retain_graph=True)
        assert gradient.abs().max() > 0


def test_an_mlp_takes_images_too() -> None:
    network = build((1, 10, 10), 2, torso="mlp")
    assert network(random_bytes(3, 2, 10, 10)).q_values.shape == (3, NUM_ACTIONS)
    assert "Convolution" not in kinds(network)


@pytest.mark.parametrize("plane", [(7,), (1, 1, 40), (1, 4, 40)])
def test_conv_is_impossible_for_vectors_and_a_few_pixels(plane: tuple[int, ...]) -> None:
    message = config_error(lambda: build(plane, torso="conv"))
    assert message.startswith("network.torso: 'conv' is not allowed; ")
    assert str(list(plane)) in message
    assert message.endswith("give mlp")


def test_first_policy_is_nearly_uniform_first_values_nearly_zero_and_seeded() -> None:
    obs = random_bytes(8, 4, 84, 84)
    one, two = build((4, 84, 84))(obs), build((4, 84, 84))(obs)
    assert torch.equal(one.pi_logits, two.pi_logits)
    uniform = torch.full((8, NUM_ACTIONS), 1 / NUM_ACTIONS)
    torch.testing.assert_close(one.pi_logits.softmax(-1), uniform, rtol=0, atol=0.02)
    torch.testing.assert_close(one.q_values, torch.zeros(8, NUM_ACTIONS), rtol=0, atol=0.05)
    assert one.q_values.abs().min() > 0


LARGE = {
    "nature": [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3)],
    "a3c": [(16, 4, 8, 8), (32, 16, 4, 4)],
    "universe": [(32, 4, 3, 3), *3 * [(32, 32, 3, 3)]],
}
STRIDES = {"nature": [4, 2, 1], "a3c": [4, 2], "universe": [2, 2, 2, 2]}


@pytest.mark.parametrize("name", LARGE)
def test_convolutions_are_those_of_the_papers_but_for_small_images(name: str) -> None:
    large, small = ([*build(plane, convolutions=name).torso] for plane in ((4, 84, 84), (2, 10, 10)))
    assert [tuple(layer.weight.shape) for layer in large if hasattr(layer, "stride")] == LARGE[name]
    assert [layer.stride[0] for layer in large if hasattr(layer, "stride")] == STRIDES[name]
    assert [tuple(layer.weight.shape) for layer in small[:4:2]] == [(32, 2, 3, 3), (64, 32, 3, 3)]


def test_universe_s_convolutions_leave_nine_places_of_42_pixels_and_pass_negative_features_on() -> None:
    network = build((1, 42, 42), convolutions="universe", hidden_sizes=(8,))
    *convolutions, _, _, _ = network.torso
    features = nn.Sequential(*convolutions)(torch.randn(2, 1, 42, 42))
    assert features.shape == (2, 32, 3, 3)
    assert -1 < features.min() < 0


def test_a_board_s_convolution_has_a_place_for_each_square_of_four_cells() -> None:
    convolution, _, _, hidden, *_ = build((2, 6, 7), convolutions="board").torso
    assert convolution(torch.zeros(1, 2, 6, 7)).shape == (1, 64, 3, 4)
    assert hidden.in_features == 64 * 3 * 4


# a user's own torso


class Sums(nn.Module):
    """Its features are sums of an observation's elements, weighted."""

    def __init__(self, config: Any, spec: EnvironmentSpec) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(math.prod(spec.obs_shape), config.hidden_sizes[0]))

    def forward(self, obs: Tensor) -> Any:
        return obs.flatten(1) @ self.weights


class Two(Sums):
    def forward(self, obs: Tensor) -> Any:
        return obs, obs


class Mean(Sums):
    def forward(self, obs: Tensor) -> Any:
        return super().forward(obs).mean(0, keepdim=True)


@pytest.mark.parametrize(("plane", "stack", "dtype"), [((7,), 2, "float32"), ((3, 10, 10), 1, "uint8")])
@pytest.mark.parametrize("lstm", [0, 6])
def test_a_user_s_own_torso_is_below_memory_and_heads(
    plane: tuple[int, ...], stack: int, dtype: str, lstm: int
) -> None:
    network = build(plane, stack, dtype, torso=f"{__name__}:Sums", hidden_sizes=(12,), lstm=lstm)
    obs = random_bytes(5, stack * plane[0], *plane[1:]).to(getattr(torch, dtype))
    output = network(obs)
    assert network.pi_logits.in_features == (lstm or 12)
    scaled = (obs / 255 if dtype == "uint8" else obs).flatten(1).float()
    torch.testing.assert_close(network.features(network.prepare(obs)), scaled @ network.torso.weights)
    doubled = network.double()(obs)
    torch.testing.assert_close(doubled.q_values, output.q_values.double(), rtol=1e-4, atol=1e-4)
    network.float().precision = torch.bfloat16  # the learner's
    rough = network(obs).q_values
    assert rough.dtype == torch.float32
    assert not torch.equal(rough, output.q_values)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("no_such_module:Torso", "cannot be imported (ModuleNotFoundError: No module named 'no_such_module')"),
        (f"{__name__}:build", "give module:class of a torch.nn.Module"),
        ("torch.nn:Linear", "could not be made; TypeError: empty"),
        ("torch.nn:Flatten", "could not be made; TypeError: flatten"),
        ("torch.nn:Identity", "it makes [2, 1, 10, 10] of [2, 1, 10, 10]; have it return [2, features]"),
        (f"{__name__}:Mean", "it makes [1, 64] of [2, 1, 10, 10]"),
        (f"{__name__}:Two", "it makes tuple of"),
    ],
)
def test_a_torso_that_cannot_be_used_is_said_in_one_line(name: str, part: str) -> None:
    message = config_error(lambda: build((1, 10, 10), torso=name))
    assert message.startswith(f"network.torso: '{name}' ")
    assert part in message


# layer normalisation


def test_layer_norm_stands_before_each_activation() -> None:
    assert kinds(build((7,), dtype="float32", layer_norm=True)) == ["Flatten", *2 * ["Linear", "LayerNorm", "ReLU"]]
    convolutions = 3 * ["Convolution", "ChannelNorm", "ReLU"]
    network = build((1, 84, 84), 4, layer_norm=True, hidden_sizes=(8,))
    assert kinds(network) == [*convolutions, "Flatten", "Linear", "LayerNorm", "ReLU"]


@pytest.mark.parametrize("plane", [(7,), (1, 10, 10)])
def test_layer_norm_makes_features_independent_of_the_scale_of_weights(plane: tuple[int, ...]) -> None:
    """Each pixel has channels with a mean of 0 and a variance of 1 then, and each fully connected layer units."""
    network = build(plane, dtype="float32", layer_norm=True, activation="tanh").double()
    obs = torch.rand(5, *plane, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    before, outputs = network(obs), list[Tensor]()
    for layer in network.torso:
        if isinstance(layer, nn.LayerNorm):
            layer.register_forward_hook(lambda _, inputs, output: outputs.append(output.movedim(1, -1)))
        elif isinstance(layer, nn.Linear | nn.Conv2d):
            layer.weight.data *= 1e4
    after = network(obs)
    for output in outputs:
        torch.testing.assert_close(output.mean(-1), torch.zeros_like(output[..., 0]), rtol=0, atol=1e-9)
        torch.testing.assert_close(output.var(-1, correction=0), torch.ones_like(output[..., 0]), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(after, before, rtol=1e-2, atol=1e-4)


def test_the_norm_of_channels_is_layer_norm_of_each_pixel_and_keeps_the_memory_format() -> None:
    norm, inputs = ChannelNorm(6), torch.randn(3, 6, 4, 5, generator=torch.Generator().manual_seed(0))
    for parameter in norm.parameters():
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(2))
    found = norm(inputs.contiguous(memory_format=torch.channels_last))
    assert found.is_contiguous(memory_format=torch.channels_last)
    for row in range(4):
        for column in range(5):
            pixel = inputs[:, :, row, column]
            deviation = (pixel.var(-1, correction=0, keepdim=True) + norm.eps).sqrt()
            expected = (pixel - pixel.mean(-1, keepdim=True)) / deviation * norm.weight + norm.bias
            torch.testing.assert_close(found[:, :, row, column], expected)


def test_initial_weights_are_drawn_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that share a busy core need seconds for a matrix of 512 x 3,136, which a killed learner's successor waits for."""
    before, threads = torch.get_num_threads(), set[int]()
    monkeypatch.setattr(nn.init, "orthogonal_", lambda *given: threads.add(torch.get_num_threads()))
    try:
        torch.set_num_threads(2)
        build((84, 84, 1), dtype="uint8", hidden_sizes=(8,))
        assert (threads, torch.get_num_threads()) == ({1}, 2)
    finally:
        torch.set_num_threads(before)
