"""Networks over time: memory, what passes from step to step and what does not, and their precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from apex_acer.config import NetworkConfig
from apex_acer.networks.discrete import QNetwork
from apex_acer.protocol.actions import Discrete
from apex_acer.protocol.specification import EnvironmentSpec
from tests.networks.test_torsos import build, random_bytes

LENGTH, COLUMNS = 7, 4
Recurrent = tuple[Any, Tensor, Tensor, dict[str, Tensor]]


@pytest.fixture
def recurrent() -> Recurrent:
    """A network whose outputs depend on what it remembers, observations, resets (at both ends too) and a state."""
    network = build((3,), dtype="float32", lstm=6, hidden_sizes=(8,)).double()
    generator = torch.Generator().manual_seed(2)
    for head in (network.pi_logits, network.q_values):
        torch.nn.init.normal_(head.weight, generator=generator)
    obs = torch.randn(LENGTH, COLUMNS, 3, generator=generator, dtype=torch.float64)
    reset = torch.rand(LENGTH, COLUMNS, generator=generator) < 0.25
    reset[:, 0] = False
    reset[0, 1] = reset[-1, 2] = reset[3, 3] = True
    state = {name: torch.randn(COLUMNS, 6, generator=generator, dtype=torch.float64) for name in ("hidden", "cell")}
    return network, obs, reset, state


def slow_unroll(network: Any, obs: Tensor, reset: Tensor, state: dict[str, Tensor]) -> Tensor:
    """One column and one observation at a time, by torch's own LSTM; an episode begins with no state at all."""
    outputs = []
    for column in range(COLUMNS):
        own = {name: value[column : column + 1] for name, value in state.items()}
        for t in range(LENGTH):
            seen, own = obs[t, column : column + 1], {} if reset[t, column] else own
            hidden, cell = network.lstm(network.torso(seen), (own["hidden"], own["cell"]) if own else None)
            output = torch.stack([network.pi_logits(hidden), network.q_values(hidden)])
            found, own = network.step(seen, own)
            torch.testing.assert_close(torch.stack(found), output)
            torch.testing.assert_close(own, {"hidden": hidden, "cell": cell})
            outputs.append(output)
    return torch.cat(outputs, 1).view(2, COLUMNS, LENGTH, -1).transpose(1, 2)


@pytest.mark.parametrize("detach_at", [0, 3])
def test_memory_is_torch_s_lstm_step_by_step_and_begins_anew_with_an_episode(
    recurrent: Recurrent, detach_at: int
) -> None:
    network, obs, reset, state = recurrent
    inputs = network.prepare(obs.flatten(0, 1))
    expected = slow_unroll(network, obs, reset, state)
    torch.testing.assert_close(torch.stack(network.unroll(inputs, reset, state, detach_at)), expected)
    never = slow_unroll(network, obs, torch.zeros_like(reset), state)
    assert not torch.allclose(never[:, :, 1:], expected[:, :, 1:])
    without = slow_unroll(network, obs, reset, {})
    torch.testing.assert_close(torch.stack(network.unroll(inputs, reset, {}, detach_at)), without)


def influence(network: Any, obs: Tensor, reset: Tensor, state: dict[str, Tensor], detach_at: int) -> Tensor:
    """How much the last outputs of each column depend on each of its observations, `[L, B]`."""
    inputs = network.prepare(obs.flatten(0, 1)).requires_grad_()
    output = network.unroll(inputs, reset, state, detach_at)
    gradient: Tensor = torch.autograd.grad(output.q_values[-1].square().sum(), inputs)[0]
    return gradient.view(LENGTH, COLUMNS, -1).abs().sum(-1)


def test_no_gradient_passes_the_detached_state_or_an_episode_s_begin(recurrent: Recurrent) -> None:
    network, obs, reset, state = recurrent
    steps = torch.arange(LENGTH).unsqueeze(-1)
    for detach_at in (0, 3, LENGTH - 1):
        passes = influence(network, obs, torch.zeros_like(reset), state, detach_at) > 0
        assert torch.equal(passes, (steps >= detach_at).expand(-1, COLUMNS))
    latest = [max([0, *torch.nonzero(reset[:, column]).flatten().tolist()]) for column in range(COLUMNS)]
    assert torch.equal(influence(network, obs, reset, state, 0) > 0, steps >= torch.tensor(latest))


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize(("plane", "dtype"), [((4, 84, 84), "uint8"), ((5,), "float32")])
def test_a_torso_in_bfloat16_gives_nearly_the_same_in_float32(
    plane: tuple[int, ...], dtype: str, normalise: bool
) -> None:
    network = build(plane, dtype=dtype, normalise=normalise)
    for head in (network.pi_logits, network.q_values):
        torch.nn.init.normal_(head.weight)
    obs = random_bytes(6, *plane).to(getattr(torch, dtype))
    reset = torch.zeros(2, 3, dtype=torch.bool)
    full = torch.stack(network.unroll(network.prepare(obs), reset, {}))
    torch.testing.assert_close(torch.stack(network(obs)), full.flatten(1, 2))  # without memory
    network.precision = torch.bfloat16
    assert network.prepare(obs).dtype == (torch.float32 if len(plane) == 1 else torch.bfloat16)
    low = torch.stack(network.unroll(network.prepare(obs), reset, {}))
    assert torch.equal(torch.stack(network(obs)), low.flatten(1, 2))
    assert low.dtype == torch.float32
    assert not torch.equal(low, full)
    assert (low - full).abs().max() < 0.03 * full.abs().max()


def test_hidden_layers_of_dueling_heads_compute_in_bfloat16_and_q_values_do_not() -> None:
    spec = EnvironmentSpec((4, 36, 36), "uint8", Discrete(3, 0), 1, False, 1, (4, 36, 36))
    network: Any = QNetwork(NetworkConfig(hidden_sizes=(8,)), spec, is_dueling=True)
    types: list[torch.dtype] = []
    network.precision = torch.bfloat16
    for layer in (*network.value, *network.advantage):
        layer.register_forward_hook(lambda _, __, output: types.append(output.dtype))
    assert network(random_bytes(6, 4, 36, 36)).q_values.dtype == torch.float32
    assert types == [torch.bfloat16, torch.bfloat16, torch.float32] * 2
