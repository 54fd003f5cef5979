"""Q-learning against the papers, one number at a time, also for continuous actions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

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

PRECISIONS = [(torch.float32, 1e-6), (torch.float64, 1e-12)]


def assert_near(actual, expected, tolerance):
    np.testing.assert_allclose(actual.numpy(), np.asarray(expected), rtol=tolerance, atol=tolerance)


def generator(seed):
    return torch.Generator().manual_seed(seed)


# dueling and the bootstrap


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("actions", [1, 2, 18])
def test_dueling_is_a_value_plus_advantages_around_zero(actions, dtype, tolerance):
    value, advantage = (torch.randn(5, 7, size, generator=generator(actions), dtype=dtype) for size in (1, actions))
    result = dueling(value, advantage)
    expected = [[reference_q.dueling(value[i, j, 0], advantage[i, j]) for j in range(7)] for i in range(5)]
    assert result.dtype == dtype
    assert_near(result, expected, 10 * tolerance)
    assert_near(result.mean(-1, keepdim=True), value, 10 * tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_network_chooses_and_the_other_judges(dtype):
    q_values, judge = torch.randn(2, 6, 8, 4, generator=generator(0), dtype=dtype)
    result, plain = bootstrap_value(q_values, judge), bootstrap_value(judge, judge)
    places = list(np.ndindex(6, 8))
    assert result.dtype == dtype
    assert result.flatten().tolist() == [reference_q.bootstrap(q_values[at], judge[at]) for at in places]
    assert plain.flatten().tolist() == [max(judge[at].tolist()) for at in places]
    assert (result <= plain).all()
    assert (result < plain).any()


def test_of_equal_values_the_first_is_chosen():
    judge = torch.tensor([[3.0, 1.0, 2.0]])
    assert bootstrap_value(torch.tensor([[5.0, 7.0, 7.0]]), judge).tolist() == [1.0]


# sequences


@pytest.mark.parametrize("rescaled", [False, True])
@pytest.mark.parametrize(("n_steps", "gamma"), [(1, 0.9), (3, 1.0), (5, 0.99), (12, 0.9)])
def test_the_targets_along_a_sequence(n_steps, gamma, rescaled):
    """Deaths, time limits and dummy steps in any order; each step's window ends with the sequence."""
    length, columns = 12, 60
    reward, *chances = torch.randn(4, length, columns, generator=generator(n_steps), dtype=torch.float64)
    terminated, truncated, masked = (chance > 1.2 for chance in chances)
    value = 3 * torch.randn(length + 1, columns, generator=generator(9), dtype=torch.float64)
    flags = {"terminated": terminated, "truncated": truncated, "mask": ~masked}
    ahead = n_step_returns(reward=reward, **flags, gamma=gamma, n_steps=n_steps)
    found = sequence_targets(ahead, value, rescaled=rescaled)
    assert len(set(ahead.length.flatten().tolist())) == min(n_steps, length) + 1
    for b in range(columns):
        sequence = [array[:, b].tolist() for array in (reward, *flags.values())]
        expected = reference_q.sequence_target(sequence, value[:, b], n_steps, gamma, value_rescaling=rescaled)
        assert_near(found[:, b], expected, 1e-11)


def test_the_priority_of_a_sequence_is_mostly_its_largest_error():
    error = torch.randn(9, 50, generator=generator(3), dtype=torch.float64)
    mask = torch.rand(9, 50, generator=generator(4)) < 0.5
    mask[:, 0], mask[:, 1] = False, True
    expected = [reference_q.sequence_priority(error[:, b], mask[:, b].tolist()) for b in range(50)]
    assert_near(sequence_priority(error, mask), expected, 1e-12)
    assert sequence_priority(error, mask)[0] == 0
    one = torch.tensor([[4.0], [-2.0], [0.0], [9.0]])
    assert sequence_priority(one, torch.tensor([[True], [True], [True], [False]])).tolist() == pytest.approx([3.8])


# the scale of values


def magnitudes(dtype):
    positive = torch.logspace(-6, 6, 400, dtype=dtype)
    return torch.cat([-positive.flip(0), torch.zeros(1, dtype=dtype), positive])


@pytest.mark.parametrize(
    ("dtype", "relative", "absolute"), [(torch.float64, 1e-12, 1e-12), (torch.float32, 1e-5, 1e-6)]
)
def test_rescaling_and_its_inverse(dtype, relative, absolute):
    values = magnitudes(dtype)
    scaled = rescale(values)
    assert scaled.dtype == unscale(scaled).dtype == dtype
    expected = [reference_q.rescale(value) for value in values.tolist()]
    np.testing.assert_allclose(scaled.numpy(), expected, rtol=relative, atol=absolute)
    np.testing.assert_allclose(unscale(scaled).numpy(), values.numpy(), rtol=relative, atol=absolute)
    np.testing.assert_allclose(rescale(unscale(scaled)).numpy(), scaled.numpy(), rtol=relative, atol=absolute)


def test_unscale_finds_what_bisection_finds():
    values = magnitudes(torch.float64)[::25]
    found = [reference_q.unscale(value) for value in values.tolist()]
    np.testing.assert_allclose(unscale(values).numpy(), found, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("function", [rescale, unscale])
def test_both_are_odd_and_monotone(function, dtype):
    values = magnitudes(dtype)
    results = function(values)
    assert torch.equal(function(-values), -results)
    assert function(torch.zeros(1, dtype=dtype)) == 0
    assert (results.diff() >= 0).all()
    assert (function(values[values.abs() > 1e-2]).diff() > 0).all()


# DDPG and TD3


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("critics", [1, 3])
def test_the_target_is_that_of_the_smallest_critic(critics):
    reward, discount = drawn(5), torch.tensor([0.9, 0.0, 0.81, 0.9, 0.5], dtype=torch.float64)
    q_values = drawn(critics, 5)
    target = smallest_target(reward=reward, discount=discount, q_values=q_values)
    for i in range(5):
        value = min(float(q[i]) for q in q_values)
        assert target[i].item() == pytest.approx(float(reward[i]) + float(discount[i]) * value)


def test_smoothing_is_clipped_and_so_is_the_action():
    action, noise = torch.tensor([[0.9, -0.9, 0.0, 0.2]]), torch.tensor([[0.3, -2.0, 0.7, 0.1]])
    expected = torch.tensor([[1.0, -1.0, 0.5, 0.3]])
    torch.testing.assert_close(smoothed_action(action, noise, 0.5), expected)


def test_correlated_noise_is_an_ornstein_uhlenbeck_process():
    """Its variance is σ² / (1 − (1 − θ)²), and its autocorrelation falls by 1 − θ a step."""
    theta, noise, path = 0.15, torch.zeros(2000, 1, dtype=torch.float64), []
    innovations = drawn(120, 2000, 1)
    for innovation in innovations:
        noise = correlated_noise(noise, 0.2 * innovation, theta)
        path.append(noise)
    late = torch.stack(path[40:]).squeeze(-1)  # [80, N]
    assert late.var().item() == pytest.approx(0.2**2 / (1 - (1 - theta) ** 2), rel=0.03)
    autocorrelation = (late[1:] * late[:-1]).mean() / late.square().mean()
    assert autocorrelation.item() == pytest.approx(1 - theta, abs=0.01)
    assert torch.equal(correlated_noise(noise, innovations[0], 1.0), innovations[0])


# SAC


SEEDED = generator(0)
REWARD, LOG_PROB = torch.randn(2, 7, generator=SEEDED, dtype=torch.float64)
DISCOUNT = torch.tensor([0.9, 0.0, 0.9, 0.81, 0.0, 0.9, 0.729], dtype=torch.float64)
Q_VALUES = torch.randn(3, 7, generator=SEEDED, dtype=torch.float64)
ALPHA = 0.3


def smallest(column):
    return min(float(q_values[column]) for q_values in Q_VALUES)


def test_targets_and_policy_losses_match_the_paper():
    temperature = torch.tensor(ALPHA)
    target = soft_target(
        reward=REWARD, discount=DISCOUNT, q_values=Q_VALUES, log_prob=LOG_PROB, temperature=temperature
    )
    loss = soft_policy_loss(q_values=Q_VALUES, log_prob=LOG_PROB, temperature=temperature)
    for i in range(7):
        value = smallest(i) - ALPHA * float(LOG_PROB[i])  # equation 3
        assert target[i].item() == pytest.approx(float(REWARD[i]) + float(DISCOUNT[i]) * value)
        assert loss[i].item() == pytest.approx(ALPHA * float(LOG_PROB[i]) - smallest(i))  # equation 7
    assert target[1] == REWARD[1]


def test_the_temperature_follows_equation_18_and_nothing_else_does():
    log_temperature = torch.tensor(math.log(ALPHA), requires_grad=True)
    log_prob = LOG_PROB.clone().requires_grad_()
    loss = temperature_loss(log_temperature, log_prob, -2.0).sum()
    (gradient,) = torch.autograd.grad(loss, log_temperature, retain_graph=True)
    assert gradient.item() == pytest.approx(sum(-(float(x) - 2.0) for x in LOG_PROB), rel=1e-6)
    assert torch.autograd.grad(loss, log_prob, allow_unused=True) == (None,)
