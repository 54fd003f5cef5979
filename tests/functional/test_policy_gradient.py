"""PPO's losses and conjugate gradients against their definitions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from apex_acer.functional import (
    clipped_surrogate,
    conjugate_gradient,
    intrinsic_reward,
)
from apex_acer.protocol.specification import Array
from tests.functional import reference_on_policy as slow

CLIP = 0.2


def gradient_of(function: Callable[[Tensor], Tensor], argument: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(function(argument.requires_grad_()).sum(), argument)
    return gradient


# PPO: the losses, and which samples they leave alone


def assert_is(
    loss: Callable[[Tensor], Tensor], expected: Callable[..., float], argument: Array, *others: Array
) -> None:
    """The loss by `argument` is the slow one, and its gradient is the quotient of two of its differences."""
    rows, step = list(zip(argument, *others, strict=True)), 1e-6
    np.testing.assert_allclose(loss(torch.from_numpy(argument)), [expected(*row, CLIP) for row in rows], rtol=1e-12)
    slopes = [(expected(x + step, *row, CLIP) - expected(x - step, *row, CLIP)) / (2 * step) for x, *row in rows]
    np.testing.assert_allclose(gradient_of(loss, torch.from_numpy(argument.copy())), slopes, rtol=1e-6, atol=1e-8)


def test_surrogate_is_the_smaller_of_the_two() -> None:
    log_ratio, advantage = np.random.default_rng(0).normal(size=(2, 45))
    assert_is(
        lambda x: clipped_surrogate(log_ratio=x, advantage=torch.from_numpy(advantage), clip=CLIP),
        slow.clipped_surrogate,
        log_ratio,
        advantage,
    )


@pytest.mark.parametrize("size", [100.0, torch.inf])
def test_extreme_ratios_have_finite_losses_and_gradients(size: float) -> None:
    log_ratio = torch.tensor([size, size, size, -size, -size, -size])
    advantage = torch.tensor([1.0, 0.0, -1.0, 1.0, 0.0, -1.0])
    loss = clipped_surrogate(log_ratio=log_ratio, advantage=advantage, clip=CLIP)
    assert loss.isfinite().all()
    torch.testing.assert_close(loss[[0, 1, 3, 4, 5]], torch.tensor([-1.2, 0.0, 0.0, 0.0, 0.8]), atol=1e-12, rtol=1e-6)
    gradient = gradient_of(lambda x: clipped_surrogate(log_ratio=x, advantage=advantage, clip=CLIP), log_ratio)
    assert gradient.isfinite().all()


# TRPO: conjugate gradients against a direct solution


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def positive_definite(size: int) -> Tensor:
    root = random(size, size)
    return root @ root.T + torch.eye(size, dtype=torch.float64)


@pytest.mark.parametrize("size", [1, 2, 10])
def test_as_many_products_as_dimensions_solve_the_system(size: int) -> None:
    matrix, vector = positive_definite(size), random(size, seed=1)
    solution = conjugate_gradient(matrix.mv, vector, size, tolerance=0.0)
    torch.testing.assert_close(solution, torch.linalg.solve(matrix, vector))


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_ends_once_the_residual_is_small_whatever_the_scale(scale: float) -> None:
    matrix, vector = positive_definite(10), scale * random(10, seed=1)
    directions = []

    def product(direction: Tensor) -> Tensor:
        directions.append(direction)
        return matrix @ direction

    solution = conjugate_gradient(product, vector, 1000, tolerance=1e-4)
    assert 2 < len(directions) < 10
    assert (vector - matrix @ solution).norm() <= 1e-2 * vector.norm()


def test_the_solution_for_nothing_is_nothing() -> None:
    solution = conjugate_gradient(lambda _: pytest.fail("no product is needed"), torch.zeros(3), 10)
    assert torch.equal(solution, torch.zeros(3))


@pytest.mark.parametrize(
    ("diagonal", "expected"),
    [
        ([-1.0, -2.0], [0.0, 0.0]),
        ([1.0, -1.0], [0.0, 0.0]),
        ([torch.nan, 1.0], [0.0, 0.0]),
        ([1e-45, 0.0], [0.0, 0.0]),
        ([3.0, -1.0], [1.0, 1.0]),  # the second direction is the bad one
    ],
)
def test_stops_before_a_direction_without_positive_curvature(diagonal: list[float], expected: list[float]) -> None:
    found = conjugate_gradient(lambda x: torch.tensor(diagonal) * x, torch.ones(2), 10)
    assert found.tolist() == expected


# curiosity: `tests/algorithms/test_curiosity.py` has its losses


def test_dummy_steps_pay_nothing_and_the_reward_has_no_gradient() -> None:
    error = torch.tensor([[2.0, math.nan], [3.0, 4.0]], requires_grad=True)
    reward = intrinsic_reward(forward=error, mask=torch.tensor([[True, False], [False, True]]), eta=0.5)
    assert reward.tolist() == [[1.0, 0.0], [0.0, 2.0]]
    assert not reward.requires_grad
