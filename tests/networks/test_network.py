"""Networks over time: memory, what passes from step to step and what does not, and their precision."""

import pytest
import torch

from apex_acer.config import NetworkConfig
from apex_acer.networks.discrete import QNetwork
from apex_acer.protocol.actions import Discrete
from apex_acer.protocol.specification import EnvironmentSpec
from tests.networks.test_torsos import build, random_bytes

LENGTH, COLUMNS = 7, 4


def recurrent(lstm=6):
    """A network whose outputs depend on what it remembers, observations, resets (at both ends too) and a state."""
    network = build((3,), dtype="float32", lstm=lstm, hidden_sizes=(8,)).double()
    generator = torch.Generator().manual_seed(2)
    for head in (network.pi_logits, network.q_values):
        torch.nn.init.normal_(head.weight, generator=generator)
    obs = torch.randn(LENGTH, COLUMNS, 3, generator=generator, dtype=torch.float64)
    reset = torch.rand(LENGTH, COLUMNS, generator=generator) < 0.25
    reset[:, 0] = False
    reset[0, 1] = reset[-1, 2] = reset[3, 3] = True
    state = {name: torch.randn(COLUMNS, lstm, generator=generator, dtype=torch.float64) for name in ("hidden", "cell")}
    return network, obs, reset, state


def slow_unroll(network, obs, reset, state):
    """One column and one observation at a time; an episode begins with no state at all."""
    outputs = []
    for column in range(COLUMNS):
        own = {name: value[column : column + 1] for name, value in state.items()}
        for t in range(LENGTH):
            output, own = network.step(obs[t, column : column + 1], {} if reset[t, column] else own)
            outputs.append(torch.stack(output))
    return torch.cat(outputs, 1).view(2, COLUMNS, LENGTH, -1).transpose(1, 2)


@pytest.mark.parametrize("detach_at", [0, 3])
def test_unroll_is_repeated_steps_that_forget_where_an_episode_begins(detach_at):
    network, obs, reset, state = recurrent()
    found = network.unroll(network.prepare(obs.flatten(0, 1)), reset, state, detach_at)
    expected = slow_unroll(network, obs, reset, state)
    torch.testing.assert_close(torch.stack(found), expected)
    never = slow_unroll(network, obs, torch.zeros_like(reset), state)
    assert not torch.allclose(never[:, :, 1:], expected[:, :, 1:])
    assert torch.equal(never[:, :, 0], expected[:, :, 0])


def test_unroll_without_a_state_begins_with_zeros():
    network, obs, reset, state = recurrent()
    inputs = network.prepare(obs.flatten(0, 1))
    zeros = {name: torch.zeros_like(value) for name, value in state.items()}
    for one, two in zip(network.unroll(inputs, reset, {}), network.unroll(inputs, reset, zeros), strict=True):
        assert torch.equal(one, two)


def test_unroll_without_memory_is_forward():
    network = build((3,), dtype="float32")
    obs = torch.randn(LENGTH, COLUMNS, 3, generator=torch.Generator().manual_seed(1))
    reset = torch.zeros(LENGTH, COLUMNS, dtype=torch.bool)
    for one, two in zip(network.unroll(obs.flatten(0, 1), reset, {}), network(obs.flatten(0, 1)), strict=True):
        torch.testing.assert_close(one.flatten(0, 1), two)


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize(("plane", "dtype"), [((4, 84, 84), "uint8"), ((5,), "float32")])
def test_a_torso_in_bfloat16_gives_nearly_the_same_in_float32(plane, dtype, normalise):
    network = build(plane, dtype=dtype, normalise=normalise)
    for head in (network.pi_logits, network.q_values):
        torch.nn.init.normal_(head.weight)
    obs = random_bytes(6, *plane).to(getattr(torch, dtype))
    reset = torch.zeros(2, 3, dtype=torch.bool)
    full = torch.stack(network.unroll(network.prepare(obs), reset, {}))
    network.precision = torch.bfloat16
    assert network.prepare(obs).dtype == (torch.float32 if len(plane) == 1 else torch.bfloat16)
    low = torch.stack(network.unroll(network.prepare(obs), reset, {}))
    assert torch.equal(torch.stack(network(obs)), low.flatten(1, 2))
    assert low.dtype == torch.float32
    assert not torch.equal(low, full)
    assert (low - full).abs().max() < 0.03 * full.abs().max()


def test_hidden_layers_of_dueling_heads_compute_in_bfloat16_and_q_values_do_not():
    spec = EnvironmentSpec((4, 36, 36), "uint8", Discrete(3, 0), 1, False, 1, (4, 36, 36))
    network = QNetwork(NetworkConfig(hidden_sizes=(8,)), spec, is_dueling=True)
    network.precision, types = torch.bfloat16, []
    for layer in (*network.value, *network.advantage):
        layer.register_forward_hook(lambda _, __, output: types.append(output.dtype))
    assert network(random_bytes(6, 4, 36, 36)).q_values.dtype == torch.float32
    assert types == [torch.bfloat16, torch.bfloat16, torch.float32] * 2


def influence(network, obs, reset, state, detach_at):
    """How much the last outputs of each column depend on each of its observations, `[L, B]`."""
    inputs = network.prepare(obs.flatten(0, 1)).requires_grad_()
    output = network.unroll(inputs, reset, state, detach_at)
    (gradient,) = torch.autograd.grad(output.q_values[-1].square().sum(), inputs)
    return gradient.view(LENGTH, COLUMNS, -1).abs().sum(-1)


@pytest.mark.parametrize("detach_at", [0, 3, LENGTH - 1])
def test_no_gradient_passes_the_detached_state(detach_at):
    network, obs, reset, state = recurrent()
    passes = influence(network, obs, torch.zeros_like(reset), state, detach_at) > 0
    assert torch.equal(passes, (torch.arange(LENGTH) >= detach_at).unsqueeze(-1).expand(-1, COLUMNS))


def test_no_gradient_passes_from_one_episode_to_the_one_before():
    network, obs, reset, state = recurrent()
    latest = [max([0, *torch.nonzero(reset[:, column]).flatten().tolist()]) for column in range(COLUMNS)]
    expected = torch.arange(LENGTH).unsqueeze(-1) >= torch.tensor(latest)
    assert torch.equal(influence(network, obs, reset, state, 0) > 0, expected)


def test_memory_is_torch_s_lstm():
    network, obs, reset, state = recurrent()
    reference = torch.nn.LSTM(8, 6).double()
    reference.load_state_dict({f"{name}_l0": tensor for name, tensor in network.lstm.state_dict().items()})
    features = network.torso(obs.flatten(0, 1)).view(LENGTH, COLUMNS, -1)
    remembered, _ = reference(features, (state["hidden"].unsqueeze(0), state["cell"].unsqueeze(0)))
    found = network.unroll(obs.flatten(0, 1), torch.zeros_like(reset), state)
    torch.testing.assert_close(found.q_values, network.q_values(remembered))
    torch.testing.assert_close(found.pi_logits, network.pi_logits(remembered))
