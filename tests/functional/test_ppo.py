"""PPO's losses against their definitions, and which samples they leave alone."""

import math

import numpy as np
import pytest
import torch

from apex_acer.functional import clipped_surrogate, clipped_value_loss
from tests.functional import reference_on_policy as slow

CLIP = 0.2


def gradient_of(function, argument):
    (gradient,) = torch.autograd.grad(function(argument.requires_grad_()).sum(), argument)
    return gradient


def test_surrogate_is_the_smaller_of_the_two():
    log_ratio, advantage = np.random.default_rng(0).normal(size=(2, 5, 9))
    loss = clipped_surrogate(log_ratio=torch.from_numpy(log_ratio), advantage=torch.from_numpy(advantage), clip=CLIP)
    expected = [slow.clipped_surrogate(*pair, CLIP) for pair in zip(log_ratio.flat, advantage.flat, strict=True)]
    np.testing.assert_allclose(loss.flatten(), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"),
    [(1.5, 2.0, False), (1.5, -2.0, True), (1.0, 2.0, True), (1.0, -2.0, True), (0.5, 2.0, True), (0.5, -2.0, False)],
)
def test_surrogate_only_leaves_alone_what_has_moved_far_enough(ratio, advantage, moves):
    """The gradient is −ratio · advantage, that of the plain objective, or none."""
    log_ratio = torch.tensor([math.log(ratio)], dtype=torch.float64)
    gradient = gradient_of(
        lambda x: clipped_surrogate(log_ratio=x, advantage=torch.tensor([advantage]), clip=CLIP), log_ratio
    )
    assert gradient.item() == pytest.approx(-ratio * advantage if moves else 0)


@pytest.mark.parametrize("size", [100.0, 1e4, torch.inf])
def test_extreme_ratios_have_finite_losses_and_gradients(size):
    log_ratio = torch.tensor([size, size, size, -size, -size, -size])
    advantage = torch.tensor([1.0, 0.0, -1.0, 1.0, 0.0, -1.0])
    loss = clipped_surrogate(log_ratio=log_ratio, advantage=advantage, clip=CLIP)
    assert loss.isfinite().all()
    torch.testing.assert_close(loss[[0, 1, 3, 4, 5]], torch.tensor([-1.2, 0.0, 0.0, 0.0, 0.8]), atol=1e-12, rtol=1e-6)
    gradient = gradient_of(lambda x: clipped_surrogate(log_ratio=x, advantage=advantage, clip=CLIP), log_ratio)
    assert gradient.isfinite().all()


def test_value_loss_is_the_larger_of_the_two():
    value, old_value, target = np.random.default_rng(1).normal(size=(3, 5, 9))
    given = {"value": value, "old_value": old_value, "target": target}
    loss = clipped_value_loss(**{name: torch.from_numpy(array) for name, array in given.items()}, clip=CLIP)
    rows = zip(value.flat, old_value.flat, target.flat, strict=True)
    np.testing.assert_allclose(loss.flatten(), [slow.clipped_value_loss(*row, CLIP) for row in rows], rtol=1e-12)


@pytest.mark.parametrize(("value", "moves"), [(1.1, True), (1.3, False), (0.5, True)])
def test_value_loss_only_leaves_alone_what_has_moved_far_enough(value, moves):
    """From 1 towards a target of 2; the loss of 0.5, which moved away from it, is that of no clipping."""
    given = {"old_value": torch.ones(1), "target": torch.full((1,), 2.0), "clip": CLIP}
    gradient = gradient_of(lambda x: clipped_value_loss(value=x, **given), torch.tensor([value]))
    assert gradient.item() == pytest.approx(value - 2 if moves else 0)
