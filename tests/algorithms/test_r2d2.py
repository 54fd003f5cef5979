"""R2D2's loss and priorities against networks that are stepped through each sequence one observation at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from apex_acer.algorithms.dqn.r2d2 import R2d2
from apex_acer.networks.discrete import QNetwork
from apex_acer.networks.frames import stack_planes
from apex_acer.networks.memory import reset_state
from apex_acer.protocol.unroll import Batch
from tests.algorithms.learning import gradients_of, made
from tests.algorithms.segments import CHOICES, SIZES, flat, random_segments
from tests.algorithms.windows import as_arrays, spec
from tests.functional import reference_q

LSTM, BURN_IN, STACK = 6, 3, 2
REFERENCE = ("n_steps", "gamma", "double", "value_rescaling", "reward_clip", "terminal_penalty")


def build_r2d2(seed: int = 0, **settings: Any) -> R2d2:
    """An `R2d2` as after some training; its networks differ."""
    given = {"unroll_length": SIZES.length - BURN_IN, "burn_in": BURN_IN, "n_steps": 3, "network__lstm": LSTM}
    r2d2 = made("r2d2", spec(STACK, CHOICES), seed, **given | settings)
    assert isinstance(r2d2, R2d2)
    return r2d2


def sequences(seed: int = 0) -> Batch:
    """A batch in which episodes end and begin in every way; the first steps are masked, as a burn-in is."""
    batch, _ = random_segments(seed, stack=STACK, lstm=LSTM)
    batch.mask[:BURN_IN] = False
    batch.reward.mul_(2)
    return batch


def stepped(network: QNetwork, batch: Batch) -> Tensor:
    """Q `[T+1, B, A]`, one observation after the other; the state that the burn-in leaves is a constant."""
    obs = stack_planes(batch.obs, batch.episode_step, STACK)
    state, values = batch.state, []
    for t in range(len(obs)):
        if t == BURN_IN:
            state = {name: part.detach() for name, part in state.items()}
        output, state = network.step(obs[t], reset_state(state, batch.episode_step[t + STACK - 1] == 0))
        values.append(output.q_values)
    return torch.stack(values)


SETTINGS: dict[str, dict[str, Any]] = {
    "as published": {},
    "single, not rescaled, to the end of the sequence": {
        "double": False,
        "value_rescaling": False,
        "n_steps": 5,
        "gamma": 1.0,
    },
    "clipped, not dueling": {"reward_clip": 1.0, "terminal_penalty": 0.5, "dueling": False},
}


@pytest.mark.parametrize("changes", SETTINGS.values(), ids=SETTINGS)
def test_loss_priorities_and_gradients_are_those_of_single_steps(changes: dict[str, Any]) -> None:
    algorithm, batch = build_r2d2(4, **changes), sequences(1)
    q_values, judge = (stepped(network, batch) for network in (algorithm.network, algorithm.target_network))
    settings = {name: getattr(algorithm.settings, name) for name in REFERENCE}
    heard, judged = q_values.detach().numpy(), judge.detach().numpy()
    expected = reference_q.sequence_loss(as_arrays(batch), heard, judged, **settings)
    taken = q_values[:-1].gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
    parameters = list(algorithm.network.parameters())
    gradients = torch.autograd.grad(taken, parameters, torch.from_numpy(expected.d_q_taken))
    output, found = gradients_of(algorithm, batch)
    assert output.loss.item() == pytest.approx(expected.total, rel=1e-9)
    assert output.num_samples == batch.mask.sum()
    np.testing.assert_allclose(output.priorities.numpy(), expected.priorities, rtol=1e-9)
    torch.testing.assert_close(found["network"], flat(gradients))
    mean = expected.target[batch.mask.numpy()].mean()
    assert output.metrics["q_target"].item() == pytest.approx(mean, rel=1e-9)
    assert (q_values.argmax(-1) != judge.argmax(-1)).any()  # so it shows which of them chooses
    begins = batch.episode_step[STACK - 1 :][1:-1] == 0
    assert (begins & batch.mask[1:]).sum() > 3
    assert (batch.terminated & batch.mask).sum() > 3
