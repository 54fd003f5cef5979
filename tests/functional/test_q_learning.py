"""Q-learning against the papers, one number at a time, also for continuous actions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from apex_acer.functional import (
    bootstrap_value,
    correlated_noise,
    dueling,
    n_step_returns,
    rescale,
    sequence_priority,
    sequence_targets,
    smallest_target,
    smoothed_action,
    soft_policy_loss,
    soft_target,
    temperature_loss,
    unscale,
)
from tests.functional import reference_q


def assert_near(actual: Tensor, expected: Any, tolerance: float) -> None:
    np.testing.assert_allclose(actual.numpy(), np.asarray(expected), rtol=tolerance, atol=tolerance)


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# dueling and the bootstrap


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-11)])
@pytest.mark.parametrize("actions", [1, 18])
def test_dueling_is_a_value_plus_advantages_around_zero(actions: int, dtype: torch.dtype, tolerance: float) -> None:
    value, advantage = drawn(35, 1, dtype=dtype), drawn(35, actions, seed=1, dtype=dtype)
    result = dueling(value, advantage)
    assert result.dtype == dtype
    assert_near(result, [reference_q.dueling(*row) for row in zip(value, advantage, strict=True)], tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_network_chooses_and_the_other_judges(dtype: torch.dtype) -> None:
    q_values, judge = drawn(2, 6, 8, 4, dtype=dtype)
    result, plain = bootstrap_value(q_values, judge), bootstrap_value(judge, judge)
    places = list(np.ndindex(6, 8))
    assert result.dtype == dtype
    assert result.flatten().tolist() == [reference_q.bootstrap(q_values[at], judge[at]) for at in places]
    assert plain.flatten().tolist() == [max(judge[at].tolist()) for at in places]
    assert (result < plain).any()
    first_of_equals = bootstrap_value(torch.tensor([[5.0, 7.0, 7.0]]), torch.tensor([[3.0, 1.0, 2.0]]))
    assert first_of_equals.tolist() == [1.0]


# sequences


@pytest.mark.parametrize("rescaled", [False, True])
@pytest.mark.parametrize(("n_steps", "gamma"), [(1, 0.9), (3, 1.0), (12, 0.9)])
def test_the_targets_along_a_sequence(n_steps: int, gamma: float, rescaled: bool) -> None:
    """Deaths, time limits and dummy steps in any order; each step's window ends with the sequence."""
    length, columns = 12, 20
    reward, *chances = drawn(4, length, columns, seed=n_steps)
    terminated, truncated, masked = (chance > 1.2 for chance in chances)
    value = 3 * drawn(length + 1, columns, seed=9)
    flags = {"terminated": terminated, "truncated": truncated, "mask": ~masked}
    ahead = n_step_returns(reward=reward, **flags, gamma=gamma, n_steps=n_steps)
    found = sequence_targets(ahead, value, rescaled=rescaled)
    assert len(set(ahead.length.flatten().tolist())) > min(n_steps, 6)
    for b in range(columns):
        sequence = [array[:, b].tolist() for array in (reward, *flags.values())]
        expected = reference_q.sequence_target(sequence, value[:, b], n_steps, gamma, value_rescaling=rescaled)
        assert_near(found[:, b], expected, 1e-11)


def test_the_priority_of_a_sequence_is_mostly_its_largest_error() -> None:
    error, mask = drawn(9, 50, seed=3), drawn(9, 50, seed=4) < 0
    mask[:, 0], mask[:, 1] = False, True
    expected = [reference_q.sequence_priority(error[:, b], mask[:, b].tolist()) for b in range(50)]
    assert_near(sequence_priority(error, mask), expected, 1e-12)
    assert expected[0] == 0


# the scale of values


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


def test_unscale_finds_what_bisection_finds() -> None:
    values = magnitudes(torch.float64)[::25]
    assert_near(unscale(values), [reference_q.unscale(value) for value in values.tolist()], 1e-12)


@pytest.mark.parametrize("function", [rescale, unscale])
def test_both_are_odd_and_monotone(function: Callable[[Tensor], Tensor]) -> None:
    values = magnitudes(torch.float32)
    results = function(values)
    assert torch.equal(function(-values), -results)
    assert function(torch.zeros(1)) == 0
    assert (results.diff() >= 0).all()
    assert (function(values[values.abs() > 1e-2]).diff() > 0).all()


# DDPG, TD3 and SAC


REWARD, LOG_PROB, *Q_VALUES = drawn(5, 7)
DISCOUNT = torch.tensor([0.9, 0.0, 0.9, 0.81, 0.0, 0.9, 0.729], dtype=torch.float64)
ALPHA = 0.3


def test_targets_and_policy_losses_are_of_the_smallest_critic() -> None:
    q_values, temperature = torch.stack(Q_VALUES), torch.tensor(ALPHA, dtype=torch.float64)
    target = smallest_target(reward=REWARD, discount=DISCOUNT, q_values=q_values)
    soft = soft_target(reward=REWARD, discount=DISCOUNT, q_values=q_values, log_prob=LOG_PROB, temperature=temperature)
    loss = soft_policy_loss(q_values=q_values, log_prob=LOG_PROB, temperature=temperature)
    for i, (reward, discount, log_prob) in enumerate(zip(REWARD, DISCOUNT, LOG_PROB, strict=True)):
        smallest = min(float(critic[i]) for critic in Q_VALUES)
        entropy = -ALPHA * float(log_prob)
        assert target[i].item() == pytest.approx(float(reward) + float(discount) * smallest)
        assert soft[i].item() == pytest.approx(
            float(reward) + float(discount) * (smallest + entropy)
        )  # SAC, equation 3
        assert loss[i].item() == pytest.approx(-entropy - smallest)  # equation 7


def test_smoothing_is_clipped_and_so_is_the_action() -> None:
    action, noise = torch.tensor([[0.9, -0.9, 0.0, 0.2]]), torch.tensor([[0.3, -2.0, 0.7, 0.1]])
    torch.testing.assert_close(smoothed_action(action, noise, 0.5), torch.tensor([[1.0, -1.0, 0.5, 0.3]]))


def test_correlated_noise_is_an_ornstein_uhlenbeck_process() -> None:
    """The noise decays by 1 − θ a step, to which the innovation is added; with θ = 1 it is the innovation alone."""
    noise, innovation = torch.tensor([[2.0, -1.0]]), torch.tensor([[0.5, 0.25]])
    torch.testing.assert_close(correlated_noise(noise, innovation, 0.15), torch.tensor([[2.2, -0.6]]))
    assert torch.equal(correlated_noise(noise, innovation, 1.0), innovation)


def test_the_temperature_follows_equation_18_and_nothing_else_does() -> None:
    log_temperature = torch.tensor(math.log(ALPHA), requires_grad=True)
    log_prob = LOG_PROB.clone().requires_grad_()
    loss = temperature_loss(log_temperature, log_prob, -2.0).sum()
    (gradient,) = torch.autograd.grad(loss, log_temperature, retain_graph=True)
    assert gradient.item() == pytest.approx(sum(-(float(x) - 2.0) for x in LOG_PROB), rel=1e-6)
    assert torch.autograd.grad(loss, log_prob, allow_unused=True) == (None,)
