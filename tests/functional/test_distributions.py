"""Distributions, joint choices and masks against their definitions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from apex_acer.functional import (
    Categorical,
    Factored,
    Gaussian,
    forbid,
    is_legal,
    join_choices,
    joint_logits,
    legal_combinations,
    random_legal,
    split_choices,
    squashed_log_prob,
)
from tests.functional import reference_continuous as reference
from tests.functional import reference_on_policy


def gaussian(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    mean, log_std = torch.randn(2, *shape, dtype=torch.float64, generator=generator)
    return Gaussian(mean, 0.5 * log_std)


def test_log_density_is_that_of_the_whole_action():
    policy, (action, _) = gaussian(0, 6, 3), gaussian(1, 6, 3)
    log_prob = policy.log_prob(action)
    expected = [
        math.log(reference.density(*row)) for row in zip(action.numpy(), *(x.numpy() for x in policy), strict=True)
    ]
    np.testing.assert_allclose(log_prob, expected, rtol=1e-12)
    one = Gaussian(policy.mean, policy.log_std[0]).log_prob(action)  # one deviation for all steps
    torch.testing.assert_close(one[0], log_prob[0])
    torch.testing.assert_close(
        Gaussian(policy.mean, torch.zeros(())).log_prob(action).exp()[0],
        torch.tensor(reference.density(action[0].numpy(), policy.mean[0].numpy(), np.zeros(3)), dtype=torch.float64),
    )


def test_divergence_is_zero_for_equals_and_that_of_the_definition_otherwise():
    first, second = gaussian(2, 6, 3), gaussian(3, 6, 3)
    rows = (x.numpy() for x in (*first, *second))
    expected = [reference.kl(*row) for row in zip(*rows, strict=True)]
    np.testing.assert_allclose(first.kl(second), expected, rtol=1e-12)
    torch.testing.assert_close(first.kl(first), torch.zeros(6, dtype=torch.float64))


def test_gaussian_entropy_is_that_of_all_dimensions():
    policy = gaussian(4, 6, 3)
    expected = [reference_on_policy.gaussian_entropy(row) for row in policy.log_std.numpy()]
    np.testing.assert_allclose(policy.entropy(), expected, rtol=1e-12)
    one = Gaussian(policy.mean, policy.log_std[0])  # one deviation for all steps
    np.testing.assert_allclose(one.entropy(), 6 * expected[:1], rtol=1e-12)
    same = Gaussian(policy.mean, torch.zeros((), dtype=torch.float64)).entropy()
    np.testing.assert_allclose(same, 6 * [reference_on_policy.gaussian_entropy(np.zeros(3))], rtol=1e-12)


def categorical(probs):
    return Categorical(torch.tensor(probs, dtype=torch.float64).log())


FIRST = [[0.2, 0.3, 0.5], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.4, 0.6]]
SECOND = [[0.6, 0.3, 0.1], [0.1, 0.2, 0.7], [0.2, 0.8, 0.0], [0.0, 1.0, 0.0]]
SPREAD = Categorical(torch.tensor([0.2, 0.3, 0.5]).log())


def test_categorical_is_that_of_the_definition():
    """Also with probabilities of 0; the last divergence is infinite."""
    first, second = categorical(FIRST), categorical(SECOND)
    action = torch.tensor([2, 1, 0, 1])
    torch.testing.assert_close(first.log_prob(action).exp(), torch.tensor([0.5, 1.0, 0.5, 0.4], dtype=torch.float64))
    expected = [reference_on_policy.kl(*rows) for rows in zip(FIRST, SECOND, strict=True)]
    assert expected[-1] == math.inf
    np.testing.assert_allclose(first.kl(second), expected, rtol=1e-12)
    np.testing.assert_array_equal(first.kl(first), np.zeros(4))
    np.testing.assert_allclose(first.entropy(), [reference_on_policy.entropy(row) for row in FIRST], rtol=1e-12)


@pytest.mark.parametrize("lowest", [-200.0, -1e30, -torch.inf])
@pytest.mark.parametrize("measure", [Categorical.entropy, lambda one: one.kl(one), lambda one: one.kl(SPREAD)])
def test_an_action_that_is_never_taken_adds_nothing(measure, lowest):
    """Neither to a value nor to a gradient, if its probability underflows, or is 0 because it is masked."""
    logits = torch.tensor([[1.0, 0.0, lowest], [0.0, 0.0, lowest]], requires_grad=True)
    value = measure(Categorical(logits.log_softmax(-1)))
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    without = logits[:, :2].detach().requires_grad_()
    padded = torch.cat([without.log_softmax(-1), torch.full((2, 1), -500.0)], -1)
    expected = measure(Categorical(padded))
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient[:, :2], torch.autograd.grad(expected.sum(), without)[0])
    assert not gradient[:, 2].any()


def test_squashed_density_is_that_of_the_tanh_of_a_gaussian():
    """By the change of variables, and as a density that integrates to 1."""
    torch_own = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(0.3, 0.8), torch.distributions.TanhTransform()
    )
    grid = torch.linspace(-8, 8, 200_001, dtype=torch.float64).unsqueeze(-1)
    log_prob = squashed_log_prob(grid, torch.tensor([0.3]).double(), torch.tensor([0.8]).double().log())
    near = grid.abs().squeeze(-1) < 3
    torch.testing.assert_close(log_prob[near], torch_own.log_prob(grid.tanh())[near].squeeze(-1), rtol=1e-6, atol=1e-6)
    assert torch.trapezoid(log_prob.exp(), grid.tanh().squeeze(-1)).item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("size", [10.0, 50.0, 1000.0])
@pytest.mark.parametrize("sign", [-1, 1])
def test_squashed_density_is_exact_where_tanh_rounds_to_one(size, sign):
    """There log(1 − tanh² u) is 2 (log 2 − |u|), to the last bit that float32 has."""
    u = torch.tensor([sign * size], requires_grad=True)
    log_prob = squashed_log_prob(u, torch.tensor([sign * size]), torch.zeros(1))
    expected = -0.5 * math.log(2 * math.pi) - 2 * (math.log(2) - size)
    assert log_prob.item() == pytest.approx(expected, rel=1e-6)
    (slope,) = torch.autograd.grad(log_prob, u)
    assert slope.item() == pytest.approx(2 * sign, rel=1e-6)


# several choices at once are the same as one choice of their combinations


SIZES = 3, 1, 2, 4
COMBINATIONS = torch.arange(24)


def policy(seed: int) -> tuple[Factored, Categorical]:
    """One of five places, by its branches and by its combinations."""
    logits = torch.randn(5, sum(SIZES), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    branches = Factored(*(part.log_softmax(-1) for part in torch.split(logits, list(SIZES), -1)))
    return branches, Categorical(joint_logits(logits, SIZES).log_softmax(-1))


def test_combinations_count_as_an_array_does() -> None:
    choices = split_choices(COMBINATIONS, SIZES)
    np.testing.assert_array_equal(torch.stack(choices), np.unravel_index(COMBINATIONS.numpy(), SIZES))
    torch.testing.assert_close(join_choices(choices, SIZES), COMBINATIONS)
    torch.testing.assert_close(
        join_choices(split_choices(torch.tensor(2**62 - 1), [2] * 62), [2] * 62), torch.tensor(2**62 - 1)
    )


def test_the_probability_of_a_combination_is_the_product_of_its_choices() -> None:
    branches, joint = policy(0)
    expected = [np.prod([part[0, choice].exp() for part, choice in zip(branches, row, strict=True)])
                for row in itertools.product(*map(range, SIZES))]  # fmt: skip
    np.testing.assert_allclose(joint.log_probs[0].exp(), expected, rtol=1e-12)


@pytest.mark.parametrize("size", [1, 7])
def test_a_single_choice_stays_what_it_is(size: int) -> None:
    logits = torch.randn(2, size)
    assert torch.equal(joint_logits(logits, (size,)), logits)
    assert torch.equal(split_choices(torch.arange(size), (size,))[0], torch.arange(size))


def test_log_probability_entropy_and_divergence_are_those_of_the_combinations() -> None:
    (first, joint), (second, other) = policy(0), policy(1)
    measures: list[tuple[Tensor, Tensor]] = [
        (first.entropy(), joint.entropy()),
        (first.kl(second), joint.kl(other)),
        *((first.log_prob(action.expand(5)), joint.log_prob(action.expand(5))) for action in COMBINATIONS),
    ]
    for of_branches, of_combinations in measures:
        torch.testing.assert_close(of_branches, of_combinations)


# illegal choices have a probability of exactly 0, and are never drawn


LEGAL = torch.tensor([[True, False, True, False], [False, False, False, True]])


def test_the_probability_is_zero_at_every_temperature() -> None:
    logits = forbid(torch.randn(2, 4, generator=torch.Generator().manual_seed(0)), LEGAL)
    for temperature in (1e-3, 1.0, 1e6):
        log_probs = (logits / temperature).log_softmax(-1)
        assert (log_probs.exp()[~LEGAL] == 0).all()
    assert torch.equal(is_legal(logits.log_softmax(-1)), LEGAL)


def test_random_ones_are_legal_and_equally_likely() -> None:
    scores = forbid(torch.zeros(2, 4), LEGAL)
    uniform = torch.arange(0, 1, 1 / 64)
    drawn = random_legal(scores.expand(64, 2, 4), uniform.unsqueeze(-1).expand(64, 2))
    assert torch.bincount(drawn[:, 0], minlength=4).tolist() == [32, 0, 32, 0]
    assert torch.bincount(drawn[:, 1], minlength=4).tolist() == [0, 0, 0, 64]
    assert random_legal(torch.zeros(5, 3), torch.tensor([0.0, 0.33, 0.34, 0.67, 0.9999])).tolist() == [0, 0, 1, 2, 2]


def test_a_combination_is_legal_if_each_of_its_choices_is() -> None:
    legal = torch.tensor([True, False, True, False, True, True])
    expected = [legal[a] & legal[3 + b] & legal[5 + c] for a, b, c in itertools.product(range(3), range(2), range(1))]
    assert legal_combinations(legal, (3, 2, 1)).tolist() == [bool(each) for each in expected]
