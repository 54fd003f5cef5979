"""Distributions, joint choices and masks against their definitions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from apex_acer.functional import (
    Categorical,
    Factored,
    Gaussian,
    Hybrid,
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


def gaussian(seed: int) -> Gaussian:
    generator = torch.Generator().manual_seed(seed)
    mean, log_std = torch.randn(2, 6, 3, dtype=torch.float64, generator=generator)
    return Gaussian(mean, 0.5 * log_std)


@pytest.mark.parametrize("deviations", ["of each step", "of each dimension", "of all"])
def test_a_gaussian_is_that_of_the_definition(deviations: str) -> None:
    first, second, action = gaussian(0), gaussian(1), gaussian(2).mean
    if deviations != "of each step":
        log_std = first.log_std[0] if deviations == "of each dimension" else torch.tensor(0.3, dtype=torch.float64)
        first = Gaussian(first.mean, log_std)
    wide = first.log_std.expand_as(first.mean).numpy()
    rows = list(zip(first.mean.numpy(), wide, second.mean.numpy(), second.log_std.numpy(), action.numpy(), strict=True))
    densities = [math.log(reference.density(taken, mean, log_std)) for mean, log_std, _, _, taken in rows]
    np.testing.assert_allclose(first.log_prob(action), densities, rtol=1e-12)
    np.testing.assert_allclose(first.kl(second), [reference.kl(*row[:4]) for row in rows], rtol=1e-12)
    np.testing.assert_allclose(first.kl(first), np.zeros(6))
    np.testing.assert_allclose(first.entropy(), [*map(reference_on_policy.gaussian_entropy, wide)], rtol=1e-12)


FIRST = [[0.2, 0.3, 0.5], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.4, 0.6]]
SECOND = [[0.6, 0.3, 0.1], [0.1, 0.2, 0.7], [0.2, 0.8, 0.0], [0.0, 1.0, 0.0]]
SPREAD = Categorical(torch.tensor([0.2, 0.3, 0.5]).log())


def test_categorical_is_that_of_the_definition() -> None:
    """Also with probabilities of 0; the last divergence is infinite."""
    first, second = (Categorical(torch.tensor(probs, dtype=torch.float64).log()) for probs in (FIRST, SECOND))
    probs = first.log_prob(torch.tensor([2, 1, 0, 1])).exp()
    torch.testing.assert_close(probs, torch.tensor([0.5, 1.0, 0.5, 0.4], dtype=torch.float64))
    expected = [reference_on_policy.kl(*rows) for rows in zip(FIRST, SECOND, strict=True)]
    assert expected[-1] == math.inf
    np.testing.assert_allclose(first.kl(second), expected, rtol=1e-12)
    np.testing.assert_array_equal(first.kl(first), np.zeros(4))
    np.testing.assert_allclose(first.entropy(), [reference_on_policy.entropy(row) for row in FIRST], rtol=1e-12)


@pytest.mark.parametrize("lowest", [-200.0, -torch.inf])
@pytest.mark.parametrize("measure", [Categorical.entropy, lambda one: one.kl(one), lambda one: one.kl(SPREAD)])
def test_an_action_that_is_never_taken_adds_nothing(measure: Callable[[Categorical], Tensor], lowest: float) -> None:
    """Neither to a value nor to a gradient, if its probability underflows, or is 0 because it is masked."""
    logits = torch.tensor([[1.0, 0.0, lowest], [0.0, 0.0, lowest]], requires_grad=True)
    value = measure(Categorical(logits.log_softmax(-1)))
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    without = logits[:, :2].detach().requires_grad_()
    expected = measure(Categorical(torch.cat([without.log_softmax(-1), torch.full((2, 1), -500.0)], -1)))
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient[:, :2], torch.autograd.grad(expected.sum(), without)[0])
    assert not gradient[:, 2].any()


@pytest.mark.parametrize("size", [10.0, -1000.0])
def test_squashed_density_is_exact_where_tanh_rounds_to_one(size: float) -> None:
    """There log(1 − tanh² u) is 2 (log 2 − |u|), to the last bit that float32 has."""
    u = torch.tensor([size], requires_grad=True)
    log_prob = squashed_log_prob(u, torch.tensor([size]), torch.zeros(1))
    expected = -0.5 * math.log(2 * math.pi) - 2 * (math.log(2) - abs(size))
    assert log_prob.item() == pytest.approx(expected, rel=1e-6)
    (slope,) = torch.autograd.grad(log_prob, u)
    assert slope.item() == pytest.approx(math.copysign(2, size), rel=1e-6)


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
    largest = torch.tensor(2**62 - 1)
    for sizes, combination in ((SIZES, COMBINATIONS), ((2,) * 62, largest), ((24,), COMBINATIONS)):
        assert torch.equal(join_choices(split_choices(combination, sizes), sizes), combination)


def test_log_probability_entropy_and_divergence_are_those_of_the_combinations() -> None:
    (first, joint), (second, other) = policy(0), policy(1)
    products = [
        np.prod([part[0, choice].exp() for part, choice in zip(first, row, strict=True)])
        for row in itertools.product(*map(range, SIZES))
    ]
    np.testing.assert_allclose(joint.log_probs[0].exp(), products, rtol=1e-12)
    measures: list[tuple[Tensor, Tensor]] = [
        (first.entropy(), joint.entropy()),
        (first.kl(second), joint.kl(other)),
        *((first.log_prob(action.expand(5)), joint.log_prob(action.expand(5))) for action in COMBINATIONS),
    ]
    for of_branches, of_combinations in measures:
        torch.testing.assert_close(of_branches, of_combinations)


# illegal choices have a probability of exactly 0, and are never drawn


LEGAL = torch.tensor([[True, False, True, False], [False, False, False, True]])


def test_choices_and_numbers_together_are_the_sums_of_the_definitions() -> None:
    """Densities of three choices, two more and three numbers, as sums over all combinations of what each of them has."""
    torch.manual_seed(0)
    first, second = (
        Hybrid(*(torch.randn(6, n, dtype=torch.float64).log_softmax(-1) for n in (3, 2)), *gaussian(seed))
        for seed in (0, 1)
    )
    sample, combination = gaussian(2).mean, torch.tensor([0, 1, 2, 3, 4, 5])
    found = (
        first.log_prob(torch.cat([combination.double().unsqueeze(-1), sample], -1)),
        first.entropy(),
        first.kl(second),
    )
    for row in range(6):
        joint, other = (
            [(a * b).item() for a in one[0][row].exp() for b in one[1][row].exp()] for one in (first, second)
        )
        mean, log_std, its_mean, its_log_std = (part[row].numpy() for part in (*first.numbers, *second.numbers))
        density = math.log(reference.density(sample[row].numpy(), mean, log_std))
        expected = (
            math.log(joint[row]) + density,
            reference_on_policy.entropy(joint) + reference_on_policy.gaussian_entropy(log_std),
            reference_on_policy.kl(joint, other) + reference.kl(mean, log_std, its_mean, its_log_std),
        )
        np.testing.assert_allclose([values[row].item() for values in found], expected, rtol=1e-12)
    single = Hybrid(*(tensor.float() for tensor in first))
    assert single.log_prob(torch.zeros(6, 4, dtype=torch.float64)).dtype == torch.float32  # as of any other policy


def test_the_probability_is_zero_at_every_temperature() -> None:
    logits = forbid(torch.randn(2, 4, generator=torch.Generator().manual_seed(0)), LEGAL)
    for temperature in (1e-3, 1.0, 1e6):
        log_probs = (logits / temperature).log_softmax(-1)
        assert (log_probs.exp()[~LEGAL] == 0).all()
    assert torch.equal(is_legal(logits.log_softmax(-1)), LEGAL)


def test_random_ones_are_legal_and_equally_likely() -> None:
    uniform = torch.arange(0, 1, 1 / 64)
    drawn = random_legal(forbid(torch.zeros(2, 4), LEGAL).expand(64, 2, 4), uniform.unsqueeze(-1).expand(64, 2))
    assert torch.bincount(drawn[:, 0], minlength=4).tolist() == [32, 0, 32, 0]
    assert torch.bincount(drawn[:, 1], minlength=4).tolist() == [0, 0, 0, 64]
    assert random_legal(torch.zeros(5, 3), torch.tensor([0.0, 0.33, 0.34, 0.67, 0.9999])).tolist() == [0, 0, 1, 2, 2]


def test_a_combination_is_legal_if_each_of_its_choices_is() -> None:
    legal = torch.tensor([True, False, True, False, True, True])
    expected = [legal[a] & legal[3 + b] & legal[5 + c] for a, b, c in itertools.product(range(3), range(2), range(1))]
    assert legal_combinations(legal, (3, 2, 1)).tolist() == [bool(each) for each in expected]
