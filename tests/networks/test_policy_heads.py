"""Greedy actions as tensors, for programs that have a network's outputs only: they are those that the policy takes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from apex_acer.networks.policies import as_given, greedy
from apex_acer.protocol.actions import Actions, Box, Discrete, MultiDiscrete

DIALS = MultiDiscrete((3, 2, 4), (5, 0, -2), (3, 1), "int16")


@pytest.mark.parametrize("is_joint", [False, True])
def test_the_best_choices_are_found_in_values_of_each_and_of_all_combinations(is_joint: bool) -> None:
    wanted = torch.arange(DIALS.n)
    values = torch.full((DIALS.n, DIALS.n if is_joint else sum(DIALS.branches)), -1.0)
    if is_joint:
        values[wanted, wanted] = 1.0
    else:
        choices = np.stack(np.unravel_index(wanted.numpy(), DIALS.branches), -1)
        values[wanted[:, None], choices + np.cumsum((0, *DIALS.branches[:-1]))] = 1.0
    assert greedy(DIALS, values, is_joint=is_joint).tolist() == wanted.tolist()


@pytest.mark.parametrize(
    "actions",
    [Discrete(4, -2), DIALS, Box((-1.0, 0.0), (3.0, 10.0), (2, 1), "float64"), Box((0.1,), (0.3,), (), "float32")],
)
def test_actions_as_tensors_become_the_environment_s_as_arrays_do(actions: Actions) -> None:
    action = actions.sample(np.random.default_rng(0), 30)
    found, expected = as_given(actions, torch.from_numpy(action)).numpy(), actions.to_environment(action)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    if isinstance(actions, Box):
        beyond = 3 * torch.from_numpy(action)
        assert torch.equal(greedy(actions, beyond, is_joint=True), beyond.clamp(-1, 1))
