import math

import pytest
import torch
from torch import nn

from apex_acer.config import ConfigError, NetworkConfig
from apex_acer.networks.discrete import ActorCritic
from apex_acer.protocol.actions import Discrete
from apex_acer.protocol.specification import EnvironmentSpec
from tests.conftest import config_error

NUM_ACTIONS = 6


def build(plane, stack=1, dtype="uint8", **settings):
    torch.manual_seed(0)
    return ActorCritic(
        NetworkConfig(**settings), EnvironmentSpec(plane, dtype, Discrete(NUM_ACTIONS, 0), stack, False, 1, plane)
    )


def kinds(network):
    return [type(layer).__name__ for layer in network.torso]


def random_bytes(*shape):
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("plane", "stack"),
    [((1, 10, 10), 1), ((3, 210, 160), 1), ((4, 84, 84), 1), ((1, 84, 84), 4), ((1, 5, 40), 2), ((3, 36, 36), 1)],
)
def test_images_of_any_size(plane, stack):
    network = build(plane, stack)
    output = network(random_bytes(2, stack * plane[0], *plane[1:]))
    assert output.pi_logits.shape == output.q_values.shape == (2, NUM_ACTIONS)
    assert output.pi_logits.dtype == output.q_values.dtype == torch.float32
    assert torch.isfinite(torch.cat(output)).all()
    assert "Convolution" in kinds(network)


@pytest.mark.parametrize("stack", [1, 3])
def test_vectors(stack):
    network = build((7,), stack, "float32", hidden_sizes=(32, 16), activation="tanh")
    output = network(torch.randn(5, 7 * stack, generator=torch.Generator().manual_seed(1)))
    assert output.pi_logits.shape == output.q_values.shape == (5, NUM_ACTIONS)
    assert kinds(network) == ["Flatten", "Linear", "Tanh", "Linear", "Tanh"]


def test_an_mlp_takes_images_too():
    network = build((1, 10, 10), 2, torso="mlp")
    assert network(random_bytes(3, 2, 10, 10)).q_values.shape == (3, NUM_ACTIONS)
    assert "Convolution" not in kinds(network)


def test_conv_is_impossible_for_vectors():
    with pytest.raises(
        ConfigError, match=r"network\.torso: 'conv' is not allowed; observations are \[7\], .*; give mlp"
    ):
        build((7,), torso="conv")


@pytest.mark.parametrize(
    "side",
    [
        1,
        2,
        3,
        4,
    ],
)
def test_conv_is_impossible_for_a_few_pixels(side):
    with pytest.raises(ConfigError, match=r"network\.torso: 'conv' is not allowed; .* give mlp"):
        build((1, side, 40), torso="conv")


def test_bytes_are_scaled_and_floats_are_not():
    obs = random_bytes(3, 4, 84, 84)
    network = build((4, 84, 84))
    for one, two in zip(network(obs), network(obs.float() / 255), strict=True):
        torch.testing.assert_close(one, two)
    assert not torch.allclose(network(obs).q_values, network(obs.float()).q_values)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float16, torch.float32, torch.float64])
def test_observations_of_any_dtype_give_the_parameters_dtype(dtype):
    network = build((1, 10, 10))
    obs = torch.ones(2, 1, 10, 10, dtype=dtype)
    assert network(obs).pi_logits.dtype == torch.float32
    assert network.double()(obs).q_values.dtype == torch.float64


@pytest.mark.parametrize("plane", [(1, 10, 10), (4, 84, 84), (7,)])
def test_float64_computes_in_float64(plane):
    network = build(plane)
    obs = random_bytes(2, *plane)
    single = network(obs)
    double = network.double()(obs)
    for one, two in zip(single, double, strict=True):
        torch.testing.assert_close(one.double(), two, rtol=1e-4, atol=1e-5)
        assert not torch.equal(two, two.float().double())


def test_first_policy_is_nearly_uniform_first_values_nearly_zero_and_seeded():
    obs = random_bytes(8, 4, 84, 84)
    one, two = build((4, 84, 84))(obs), build((4, 84, 84))(obs)
    assert torch.equal(one.pi_logits, two.pi_logits)
    torch.testing.assert_close(
        one.pi_logits.softmax(-1), torch.full((8, NUM_ACTIONS), 1 / NUM_ACTIONS), rtol=0, atol=0.02
    )
    torch.testing.assert_close(one.q_values, torch.zeros(8, NUM_ACTIONS), rtol=0, atol=0.05)
    assert one.q_values.abs().min() > 0


def test_torso_is_shared_and_both_heads_train_it():
    network = build((7,), dtype="float32")
    obs = torch.randn(4, 7, generator=torch.Generator().manual_seed(1))
    first = network.torso[1].weight
    for head in network(obs):
        (gradient,) = torch.autograd.grad(head.square().sum(), first, retain_graph=True)
        assert gradient.abs().max() > 0


def test_a3c_s_convolutions_are_two_and_smaller():
    network = build((1, 84, 84), 4, convolutions="a3c", hidden_sizes=(32,))
    assert kinds(network) == ["Convolution", "ReLU", "Convolution", "ReLU", "Flatten", "Linear", "ReLU"]
    shapes = [tuple(layer.weight.shape) for layer in network.torso if hasattr(layer, "weight")]
    assert shapes == [(16, 4, 8, 8), (32, 16, 4, 4), (32, 32 * 9 * 9)]
    assert [layer.stride for layer in network.torso if hasattr(layer, "stride")] == [(4, 4), (2, 2)]
    assert network(random_bytes(2, 4, 84, 84)).q_values.shape == (2, NUM_ACTIONS)


@pytest.mark.parametrize("name", ["nature", "a3c"])
def test_small_images_have_convolutions_of_their_own(name):
    shapes = [tuple(layer.weight.shape) for layer in build((2, 10, 10), convolutions=name).torso[:4:2]]
    assert shapes == [(32, 2, 3, 3), (64, 32, 3, 3)]


# a user's own torso


class Sums(nn.Module):
    """Its features are sums of an observation's elements, weighted."""

    def __init__(self, config, spec):
        super().__init__()
        self.weights = nn.Parameter(torch.randn(math.prod(spec.obs_shape), config.hidden_sizes[0]))

    def forward(self, obs):
        return obs.flatten(1) @ self.weights


class Unflattened(Sums):
    def forward(self, obs):
        return obs


class Two(Sums):
    def forward(self, obs):
        return obs, obs


class Mean(Sums):
    def forward(self, obs):
        return super().forward(obs).mean(0, keepdim=True)


class Raises(Sums):
    def forward(self, obs):
        raise ZeroDivisionError("two\nlines")


def no_module(config, spec):
    raise AssertionError("was called")


@pytest.mark.parametrize(("plane", "stack", "dtype"), [((7,), 2, "float32"), ((3, 10, 10), 1, "uint8")])
@pytest.mark.parametrize("lstm", [0, 6])
def test_a_user_s_own_torso_is_below_memory_and_heads(plane, stack, dtype, lstm):
    network = build(plane, stack, dtype, torso=f"{__name__}:Sums", hidden_sizes=(12,), lstm=lstm)
    obs = random_bytes(5, stack * plane[0], *plane[1:]).to(getattr(torch, dtype))
    output = network(obs)
    assert output.pi_logits.shape == output.q_values.shape == (5, NUM_ACTIONS)
    assert network.pi_logits.in_features == (lstm or 12)
    scaled = obs / 255 if dtype == "uint8" else obs
    torch.testing.assert_close(
        network.features(network.prepare(obs)), scaled.flatten(1).float() @ network.torso.weights
    )
    doubled = network.double()(obs)
    torch.testing.assert_close(doubled.q_values, output.q_values.double(), rtol=1e-4, atol=1e-4)


def test_a_user_s_own_torso_computes_in_the_learner_s_precision():
    network = build((7,), torso=f"{__name__}:Sums", dtype="float32")
    obs = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
    exact = network(obs).q_values
    network.precision = torch.bfloat16
    rough = network(obs).q_values
    assert rough.dtype == torch.float32
    assert not torch.equal(rough, exact)
    torch.testing.assert_close(rough, exact, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("no_such_module:Torso", "cannot be imported (ModuleNotFoundError: No module named 'no_such_module')"),
        (f"{__name__}:Absent", "is not a class of the module; give module:class"),
        (f"{__name__}:no_module", "give module:class of a torch.nn.Module"),
        ("torch.nn:Linear", "could not be made; TypeError: "),
        (f"{__name__}:Raises", "could not be made; ZeroDivisionError: two lines"),
        (f"{__name__}:Unflattened", "it makes [2, 1, 10, 10] of [2, 1, 10, 10]; have it return [2, features]"),
        (f"{__name__}:Mean", "it makes [1, 64] of [2, 1, 10, 10]"),
        (f"{__name__}:Two", "it makes tuple of"),
    ],
)
def test_a_torso_that_cannot_be_used_is_said_in_one_line(name, part):
    message = config_error(lambda: build((1, 10, 10), torso=name))
    assert message.startswith(f"network.torso: '{name}' ")
    assert part in message
