import math

import numpy as np
import pytest
import torch

from apex_acer.functional import Gaussian, gaussian_kl, gaussian_log_prob, squashed_log_prob
from tests.functional import reference_continuous as reference


def gaussian(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    mean, log_std = torch.randn(2, *shape, dtype=torch.float64, generator=generator)
    return Gaussian(mean, 0.5 * log_std)


def test_log_density_is_that_of_the_whole_action():
    policy, (action, _) = gaussian(0, 6, 3), gaussian(1, 6, 3)
    log_prob = gaussian_log_prob(action, *policy)
    expected = [
        math.log(reference.density(*row)) for row in zip(action.numpy(), *(x.numpy() for x in policy), strict=True)
    ]
    np.testing.assert_allclose(log_prob, expected, rtol=1e-12)
    one = gaussian_log_prob(action, policy.mean, policy.log_std[0])  # one deviation for all steps
    torch.testing.assert_close(one[0], log_prob[0])
    torch.testing.assert_close(
        gaussian_log_prob(action, policy.mean, torch.zeros(())).exp()[0],
        torch.tensor(reference.density(action[0].numpy(), policy.mean[0].numpy(), np.zeros(3)), dtype=torch.float64),
    )


def test_divergence_is_zero_for_equals_and_that_of_the_definition_otherwise():
    first, second = gaussian(2, 6, 3), gaussian(3, 6, 3)
    rows = (x.numpy() for x in (*first, *second))
    expected = [reference.kl(*row) for row in zip(*rows, strict=True)]
    np.testing.assert_allclose(gaussian_kl(first, second), expected, rtol=1e-12)
    torch.testing.assert_close(gaussian_kl(first, first), torch.zeros(6, dtype=torch.float64))


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
