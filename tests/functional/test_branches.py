"""Several choices at once are the same as one choice of their combinations."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from apex_acer.functional import Categorical, Factored, join_choices, joint_logits, split_choices

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
