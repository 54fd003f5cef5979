"""Dueling networks, rescaled values and Q(λ) against the papers; losses are in `tests/algorithms`, each whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from apex_acer.functional import (
    dueling,
    forbid,
    n_step_returns,
    q_lambda_target,
    rescale,
    sequence_priority,
    sequence_targets,
    unscale,
)
from tests.functional import reference, reference_q


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-11)])
@pytest.mark.parametrize("actions", [1, 18])
def test_dueling_is_a_value_plus_advantages_around_zero(actions: int, dtype: torch.dtype, tolerance: float) -> None:
    numbers = torch.randn(35, 1 + actions, generator=torch.manual_seed(0), dtype=dtype)
    value, advantage = numbers[:, :1], numbers[:, 1:]
    result = dueling(value, advantage)
    assert result.dtype == dtype
    expected = [reference_q.dueling(*row) for row in zip(value, advantage, strict=True)]
    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)


def test_the_priority_of_a_sequence_is_mostly_its_largest_error_that_is_not_masked() -> None:
    generator = torch.manual_seed(3)
    error, mask = torch.randn(9, 50, generator=generator), torch.rand(9, 50, generator=generator) < 0.5
    mask[:, 0], mask[:, 1] = False, True
    expected = [reference_q.sequence_priority(error[:, b], mask[:, b].tolist()) for b in range(50)]
    np.testing.assert_allclose(sequence_priority(error, mask), expected, rtol=1e-5)
    assert expected[0] == 0


def magnitudes(dtype: torch.dtype) -> Tensor:
    positive = torch.logspace(-6, 6, 400, dtype=dtype)
    return torch.cat([-positive.flip(0), torch.zeros(1, dtype=dtype), positive])


@pytest.mark.parametrize(
    ("dtype", "relative", "absolute"), [(torch.float64, 1e-12, 1e-12), (torch.float32, 1e-5, 1e-6)]
)
def test_rescaling_and_its_inverse(dtype: torch.dtype, relative: float, absolute: float) -> None:
    values = magnitudes(dtype)
    scaled = rescale(values)
    assert scaled.dtype == unscale(scaled).dtype == dtype
    expected = [reference_q.rescale(value) for value in values.tolist()]
    np.testing.assert_allclose(scaled.numpy(), expected, rtol=relative, atol=absolute)
    np.testing.assert_allclose(unscale(scaled).numpy(), values.numpy(), rtol=relative, atol=absolute)
    np.testing.assert_allclose(rescale(unscale(scaled)).numpy(), scaled.numpy(), rtol=relative, atol=absolute)


@pytest.mark.parametrize("function", [rescale, unscale])
def test_both_are_odd_and_monotone(function: Callable[[Tensor], Tensor]) -> None:
    values = magnitudes(torch.float32)
    results = function(values)
    assert torch.equal(function(-values), -results)
    assert function(torch.zeros(1)) == 0
    assert (results.diff() >= 0).all()
    assert (function(values[values.abs() > 1e-2]).diff() > 0).all()


# Q(λ)

FLAGS = ("reward", "terminated", "truncated", "mask")


def q_lambda_batch(seed: int, length: int = 14) -> dict[str, Any]:
    batch = reference.random_batch(seed, reference.Sizes(length, 9, 4))
    return {name: batch[name] for name in ("q_values", *FLAGS)}


def computed_q_lambda(batch: dict[str, Any], dtype: torch.dtype = torch.float64, **settings: float) -> Tensor:
    tensors = {name: torch.from_numpy(array.copy()) for name, array in batch.items()}
    floats = {name: tensor.to(dtype) for name, tensor in tensors.items() if tensor.is_floating_point()}
    chosen: dict[str, Any] = {"gamma": 0.9, "q_lambda": 0.65} | settings
    return q_lambda_target(**tensors | floats | chosen)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize(("length", "q_lambda"), [(1, 0.65), (14, 0.0), (14, 0.65), (14, 1.0)])
def test_q_lambda_targets_are_the_paper_s_recursion(
    length: int, q_lambda: float, dtype: torch.dtype, tolerance: float
) -> None:
    """A time limit is bootstrapped from the final observation, a death is not, and no step counts for another episode."""
    batch = q_lambda_batch(3, length)
    if length > 1:
        assert (batch["terminated"][:-1] & batch["mask"][1:]).any()  # a lost life
        assert (batch["truncated"][:-1] & ~batch["mask"][1:]).any()
    target = computed_q_lambda(batch, dtype, q_lambda=q_lambda)
    assert target.dtype == dtype
    expected = reference_q.q_lambda_targets(batch, batch["q_values"], 0.9, q_lambda)
    np.testing.assert_allclose(target, expected, rtol=tolerance * 10, atol=tolerance * 10)


def test_q_lambda_of_zero_is_one_step_and_of_one_the_sum_up_to_the_end() -> None:
    """As the n-step targets of all lengths are, which R2D2 learns from."""
    batch = q_lambda_batch(4)
    flags: dict[str, Any] = {name: torch.from_numpy(batch[name]) for name in FLAGS}
    value = torch.from_numpy(batch["q_values"]).amax(-1)
    for q_lambda, n_steps in ((0.0, 1), (1.0, 14)):
        ahead = n_step_returns(**flags, gamma=0.9, n_steps=n_steps)
        expected = torch.where(flags["mask"], sequence_targets(ahead, value, rescaled=False), value[:-1])
        np.testing.assert_allclose(computed_q_lambda(batch, q_lambda=q_lambda), expected, rtol=1e-12, atol=1e-12)


def test_q_lambda_never_bootstraps_from_an_illegal_action() -> None:
    batch = q_lambda_batch(5)
    legal = torch.rand(batch["q_values"].shape, generator=torch.Generator().manual_seed(0)) < 0.5
    legal[..., 2] = True
    q_values = torch.from_numpy(batch["q_values"])
    best = torch.where(legal, q_values, -100.0).numpy()
    expected = reference_q.q_lambda_targets(batch, best, 0.9, 0.65)
    target = computed_q_lambda(batch | {"q_values": forbid(q_values, legal).numpy()})
    np.testing.assert_allclose(target, expected, rtol=1e-11, atol=1e-11)


def test_q_lambda_targets_carry_no_gradient_and_wrong_shapes_are_named() -> None:
    batch = q_lambda_batch(6)
    q_values = torch.from_numpy(batch["q_values"]).requires_grad_()
    flags: dict[str, Any] = {name: torch.from_numpy(batch[name]) for name in FLAGS}
    assert not q_lambda_target(q_values=q_values, **flags, gamma=0.9, q_lambda=0.5).requires_grad
    with pytest.raises(ValueError, match="reward"):
        computed_q_lambda(batch | {"reward": batch["reward"][:-1]})
