"""Choices that are not legal have a probability of exactly 0, and are never drawn."""

from __future__ import annotations

import itertools

import torch

from apex_acer.functional import forbid, is_legal, legal_combinations, random_legal

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
