"""Pixel control and reward prediction against a slow transcription, one cell and one step at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from apex_acer.functional import pixel_change, recent, reward_class, skewed_weights
from apex_acer.networks.images import cells_of
from tests.functional import reference_auxiliary as slow

T, B = 7, 5


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("height", "width"), [(8, 8), (10, 6), (12, 20), (42, 47), (5, 3)])
def test_a_cell_pays_the_mean_change_of_its_pixels_in_all_channels(height: int, width: int) -> None:
    images = torch.rand(T + 1, 2, 3, height, width, generator=generator(height), dtype=torch.float64)
    cells = cells_of(height, width)
    np.testing.assert_allclose(pixel_change(images, *cells), slow.pixel_change(images.numpy(), *cells), rtol=1e-12)


@pytest.mark.parametrize(
    ("size", "cells"),
    [
        ((84, 84), (4, 20, 20)),  # the paper's
        ((210, 160), (4, 52, 40)),
        ((40, 44), (4, 10, 10)),
        ((16, 32), (4, 4, 8)),
        ((16, 18), (2, 8, 9)),
        ((8, 8), (2, 4, 4)),
        ((10, 6), (1, 10, 6)),
        ((7, 7), (1, 7, 7)),
    ],
)
def test_cells_fit_the_image(size: tuple[int, int], cells: tuple[int, int, int]) -> None:
    assert cells_of(*size) == cells


def test_rewards_have_three_classes() -> None:
    reward = torch.tensor([0.0, 0.5, -1e-3, 7.0, -0.0])
    assert reward_class(reward).tolist() == [slow.reward_class(value) for value in reward.tolist()] == [0, 1, 2, 1, 0]


@pytest.mark.parametrize("num", [1, 3, 10])
def test_the_newest_observations_are_of_one_episode(num: int) -> None:
    """Observations before the episode are zero and known, and before the sequence not known."""
    features = torch.randn(T, B, 2, generator=generator(0))
    first = torch.rand(T, B, generator=generator(1)) < 0.25
    assert 0 < first[0].sum() < B
    found, is_known = recent(features, first, num)
    unknown = 0
    for t, b in np.ndindex(T, B):
        rows = slow.newest_frames(first.numpy(), t, b, num)
        assert is_known[t, b] == (-1 not in rows)
        unknown += -1 in rows
        for place, row in enumerate(rows):
            expected = features[row, b] if row is not None and row >= 0 else torch.zeros(2)
            assert torch.equal(found[t, b, 2 * place : 2 * place + 2], expected)
    assert (unknown > 0) == (num > 1)


@pytest.mark.parametrize("classes", [{0, 1, 2}, {0}, {1, 2}])
def test_steps_with_a_reward_have_half_of_the_weight(classes: set[int]) -> None:
    kinds = torch.tensor(sorted(classes))[torch.randint(len(classes), (T, B), generator=generator(2))]
    mask = torch.rand(T, B, generator=generator(3)) < 0.7
    importance = torch.rand(B, generator=generator(4), dtype=torch.float64)
    weights = skewed_weights(kinds, mask, importance)
    assert not weights[~mask].any()
    torch.testing.assert_close(weights.sum().item(), 1.0)
    if len(classes) == 3:
        torch.testing.assert_close(weights[kinds != 0].sum().item(), 0.5)
    losses = torch.rand(T, B, generator=generator(5), dtype=torch.float64)
    counted = {(t, b): float(losses[t, b]) for t, b in np.ndindex(T, B) if mask[t, b]}
    expected = slow.skewed_mean(counted, {place: int(kinds[place]) for place in counted}, importance.numpy())
    torch.testing.assert_close((weights * losses).sum().item(), expected, rtol=1e-12, atol=0.0)


def test_without_steps_there_is_no_weight() -> None:
    nothing = torch.zeros(T, B, dtype=torch.bool)
    assert not skewed_weights(nothing.long(), nothing, torch.ones(B)).any()
    assert not skewed_weights(nothing.long(), ~nothing, torch.zeros(B)).any()
