"""PPO's losses, TRPO's natural gradient and curiosity against their definitions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from apex_acer.functional import (
    Categorical,
    clipped_surrogate,
    clipped_value_loss,
    conjugate_gradient,
    curiosity_loss,
    fisher_product,
    forward_error,
    intrinsic_reward,
    inverse_error,
)
from tests.functional import reference_on_policy as slow

CLIP = 0.2


def gradient_of(function: Callable[[Tensor], Tensor], argument: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(function(argument.requires_grad_()).sum(), argument)
    return gradient


# PPO: the losses, and which samples they leave alone


def test_surrogate_is_the_smaller_and_the_value_s_loss_the_larger_of_the_two() -> None:
    log_ratio, advantage = np.random.default_rng(0).normal(size=(2, 45))
    loss = clipped_surrogate(log_ratio=torch.from_numpy(log_ratio), advantage=torch.from_numpy(advantage), clip=CLIP)
    expected = [slow.clipped_surrogate(*pair, CLIP) for pair in zip(log_ratio, advantage, strict=True)]
    np.testing.assert_allclose(loss, expected, rtol=1e-12)
    value, old_value, target = np.random.default_rng(1).normal(size=(3, 45))
    given = {"value": value, "old_value": old_value, "target": target}
    loss = clipped_value_loss(**{name: torch.from_numpy(array) for name, array in given.items()}, clip=CLIP)
    expected = [slow.clipped_value_loss(*row, CLIP) for row in zip(value, old_value, target, strict=True)]
    np.testing.assert_allclose(loss, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"),
    [(1.5, 2.0, False), (1.5, -2.0, True), (1.0, 2.0, True), (1.0, -2.0, True), (0.5, 2.0, True), (0.5, -2.0, False)],
)
def test_surrogate_only_leaves_alone_what_has_moved_far_enough(ratio: float, advantage: float, moves: bool) -> None:
    """The gradient is −ratio · advantage, that of the plain objective, or none."""
    log_ratio = torch.tensor([math.log(ratio)], dtype=torch.float64)
    gradient = gradient_of(
        lambda x: clipped_surrogate(log_ratio=x, advantage=torch.tensor([advantage]), clip=CLIP), log_ratio
    )
    assert gradient.item() == pytest.approx(-ratio * advantage if moves else 0)


@pytest.mark.parametrize("size", [100.0, torch.inf])
def test_extreme_ratios_have_finite_losses_and_gradients(size: float) -> None:
    log_ratio = torch.tensor([size, size, size, -size, -size, -size])
    advantage = torch.tensor([1.0, 0.0, -1.0, 1.0, 0.0, -1.0])
    loss = clipped_surrogate(log_ratio=log_ratio, advantage=advantage, clip=CLIP)
    assert loss.isfinite().all()
    torch.testing.assert_close(loss[[0, 1, 3, 4, 5]], torch.tensor([-1.2, 0.0, 0.0, 0.0, 0.8]), atol=1e-12, rtol=1e-6)
    gradient = gradient_of(lambda x: clipped_surrogate(log_ratio=x, advantage=advantage, clip=CLIP), log_ratio)
    assert gradient.isfinite().all()


@pytest.mark.parametrize(("value", "moves"), [(1.1, True), (1.3, False), (0.5, True)])
def test_value_loss_only_leaves_alone_what_has_moved_far_enough(value: float, moves: bool) -> None:
    """From 1 towards a target of 2; the loss of 0.5, which moved away from it, is that of no clipping."""
    old_value, target = torch.ones(1), torch.full((1,), 2.0)
    gradient = gradient_of(
        lambda x: clipped_value_loss(value=x, old_value=old_value, target=target, clip=CLIP), torch.tensor([value])
    )
    assert gradient.item() == pytest.approx(value - 2 if moves else 0)


# TRPO: conjugate gradients against a direct solution, the Fisher product against the matrix


DAMPING = 0.1


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def positive_definite(size: int) -> Tensor:
    root = random(size, size)
    return root @ root.T + torch.eye(size, dtype=torch.float64)


class Policy(nn.Module):
    """A small policy beside a head that has no part in it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        self.value = nn.Linear(3, 1)
        self.double()

    def forward(self, obs: Tensor) -> Categorical:
        return Categorical(self.layers(obs).log_softmax(-1))


def test_products_are_those_of_the_damped_fisher_matrix() -> None:
    network, obs = Policy(), random(6, 3, seed=1)
    log_probs, parameters = network(obs).log_probs, list(network.parameters())
    scores = np.zeros((*log_probs.shape, sum(parameter.numel() for parameter in parameters)))
    for at in np.ndindex(scores.shape[:2]):
        found = torch.autograd.grad(log_probs[at], parameters, retain_graph=True, materialize_grads=True)
        scores[at] = torch.cat([gradient.reshape(-1) for gradient in found])
    matrix = torch.from_numpy(slow.fisher(log_probs.exp().detach().numpy(), scores))
    damped = matrix + DAMPING * torch.eye(len(matrix), dtype=torch.float64)
    kl = Categorical(log_probs.detach()).kl(network(obs)).mean()
    product = fisher_product(kl, parameters, DAMPING)
    found_rows = torch.stack([product(row) for row in torch.eye(len(matrix), dtype=torch.float64)])  # of one graph
    torch.testing.assert_close(found_rows, damped)
    assert not found_rows.requires_grad
    assert all(parameter.grad is None for parameter in parameters)
    vector = random(len(matrix), seed=2)
    solution = conjugate_gradient(product, vector, len(matrix))
    torch.testing.assert_close(solution, torch.linalg.solve(damped, vector), rtol=1e-4, atol=1e-4)


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


# curiosity: its losses and its reward, and what has gradient


def test_the_forward_error_is_half_the_squared_distance_and_moves_features_too() -> None:
    predicted, features = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[0.0, 4.0], [0.0, 6.0]])
    predicted, features = predicted.requires_grad_(), features.requires_grad_()
    error = forward_error(predicted, features)
    assert error.tolist() == [(1 + 4) / 2, 36 / 2]
    gradients = torch.autograd.grad(error.sum(), (predicted, features))
    assert gradients[0].tolist() == (-gradients[1]).tolist() == [[1.0, -2.0], [0.0, -6.0]]


def test_the_inverse_error_is_a_cross_entropy_of_choices_or_half_the_squared_distance_of_numbers() -> None:
    logits, action = torch.tensor([[[0.0, 1.0, 3.0]], [[5.0, 2.0, 2.0]]]), torch.tensor([[2], [1]])
    first, second = (math.log(sum(map(math.exp, row))) for row in ((0, 1, 3), (5, 2, 2)))
    torch.testing.assert_close(inverse_error(logits, action), torch.tensor([[first - 3], [second - 2]]))
    predicted, numbers = torch.tensor([[1.0, 2.0], [0.0, 0.5]]), torch.tensor([[0.0, 0.0], [0.0, 1.0]])
    assert inverse_error(predicted, numbers).tolist() == [2.5, 0.125]


def test_the_loss_of_curiosity_weighs_the_models() -> None:
    forward, inverse = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    assert curiosity_loss(forward=forward, inverse=inverse).tolist() == pytest.approx([0.2, 0.8])
    assert curiosity_loss(forward=forward, inverse=inverse, beta=0.75).tolist() == [0.75, 0.25]


def test_dummy_steps_pay_nothing_and_the_reward_has_no_gradient() -> None:
    error = torch.tensor([[2.0, math.nan], [3.0, 4.0]], requires_grad=True)
    reward = intrinsic_reward(forward=error, mask=torch.tensor([[True, False], [False, True]]), eta=0.5)
    assert reward.tolist() == [[1.0, 0.0], [0.0, 2.0]]
    assert not reward.requires_grad
