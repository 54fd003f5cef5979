"""Returns, mean fitness, extra noise and the fit to elites against a slow transcription of the paper."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from apex_acer.functional import discounted_return, extra_variance, fit_elites, mean_fitness
from tests.functional import reference_evolution


@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.0])
def test_a_return_is_of_the_steps_that_are_not_masked(gamma: float) -> None:
    generator = torch.manual_seed(0)
    reward, mask = torch.randn(7, 9, generator=generator), torch.rand(7, 9, generator=generator) < 0.6
    reward[~mask] = torch.nan
    expected = [reference_evolution.episode_return(*each, gamma) for each in zip(reward.T, mask.T, strict=True)]
    np.testing.assert_allclose(discounted_return(reward, mask, gamma), expected, rtol=1e-12, atol=1e-12)


def test_small_rewards_of_a_long_episode_are_not_lost() -> None:
    reward = torch.full((100_000, 1), 1e-4)
    reward[0] = 1e4
    total = discounted_return(reward, torch.ones_like(reward, dtype=torch.bool), 1.0)
    assert total.item() == pytest.approx(1e4 + 99_999 * float(np.float32(1e-4)), rel=1e-12)


def test_a_member_s_fitness_is_the_mean_of_its_episodes() -> None:
    numbers, returns = torch.tensor([7.0, 3, 7, 16_777_215, 3, 7]), torch.tensor([1.0, 2, 4, 8, 16, 32]).double()
    members, fitness = mean_fitness(numbers, returns)
    expected = reference_evolution.mean_returns([int(number) for number in numbers], returns.tolist())
    assert dict(zip(members.int().tolist(), fitness.tolist(), strict=True)) == pytest.approx(expected)
    assert sorted(expected) == members.tolist() == [3, 7, 16_777_215]


@pytest.mark.parametrize("generations", [0, 1, 4])
def test_the_variance_of_extra_noise_falls_linearly(generations: int) -> None:
    for generation in range(7):
        expected = reference_evolution.noise_variance(0.5, generation, generations)
        assert extra_variance(0.5, generation, generations) == pytest.approx(expected, abs=1e-15)
    assert extra_variance(0.5, 9, 0) == 0.25
    assert extra_variance(0.5, 4, 4) == 0


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("num", [1, 2, 6])
def test_the_gaussian_is_that_of_the_elites_with_the_noise(num: int, dtype: torch.dtype, tolerance: float) -> None:
    generator = torch.manual_seed(num)
    members, fitness = torch.randn(6, 5, generator=generator, dtype=dtype), torch.randn(6, generator=generator)
    elites = fitness.argsort(descending=True)[:num]
    mean, std = fit_elites(members[elites], 0.3)
    assert mean.dtype == std.dtype == dtype
    means, stds = reference_evolution.refit(members.tolist(), fitness.tolist(), num, 0.3)
    np.testing.assert_allclose(mean, means, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(std, stds, rtol=tolerance, atol=tolerance)
    assert fit_elites(members[:1], 0.0)[1].tolist() == [0.0] * 5
