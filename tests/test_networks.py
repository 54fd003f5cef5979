import pytest
import torch

from apex_acer.config import ConfigError, NetworkConfig
from apex_acer.networks import ActorCritic
from apex_acer.trajectory import EnvironmentSpec

NUM_ACTIONS = 6


def build(plane, stack=1, dtype="uint8", **settings):
    torch.manual_seed(0)
    return ActorCritic(NetworkConfig(**settings), EnvironmentSpec(plane, dtype, NUM_ACTIONS, 0, stack, False, 1))


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
    assert "Conv2d" in kinds(network)


@pytest.mark.parametrize("stack", [1, 3])
def test_vectors(stack):
    network = build((7,), stack, "float32", hidden_sizes=(32, 16), activation="tanh")
    output = network(torch.randn(5, 7 * stack, generator=torch.Generator().manual_seed(1)))
    assert output.pi_logits.shape == output.q_values.shape == (5, NUM_ACTIONS)
    assert kinds(network) == ["Flatten", "Linear", "Tanh", "Linear", "Tanh"]


def test_an_mlp_takes_images_too():
    network = build((1, 10, 10), 2, torso="mlp")
    assert network(random_bytes(3, 2, 10, 10)).q_values.shape == (3, NUM_ACTIONS)
    assert "Conv2d" not in kinds(network)


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


def test_first_policy_is_nearly_uniform_and_seeded():
    obs = random_bytes(8, 4, 84, 84)
    one, two = build((4, 84, 84))(obs), build((4, 84, 84))(obs)
    assert torch.equal(one.pi_logits, two.pi_logits)
    torch.testing.assert_close(
        one.pi_logits.softmax(-1), torch.full((8, NUM_ACTIONS), 1 / NUM_ACTIONS), rtol=0, atol=0.02
    )
    assert one.q_values.std() > 10 * one.pi_logits.std()


def test_torso_is_shared_and_both_heads_train_it():
    network = build((7,), dtype="float32")
    obs = torch.randn(4, 7, generator=torch.Generator().manual_seed(1))
    first = network.torso[1].weight
    for head in network(obs):
        (gradient,) = torch.autograd.grad(head.square().sum(), first, retain_graph=True)
        assert gradient.abs().max() > 0
