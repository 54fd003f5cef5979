from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from apex_acer.config import NetworkConfig
from apex_acer.networks.batch_norm import DECAY, EPS, WARM_UP, BatchRenorm, NormalisedLayers, advance, batch_renorms
from apex_acer.networks.critics import Critics
from tests.networks.test_critics import VECTORS


def layer(count: int = 0, *shape: int) -> BatchRenorm:
    """A layer as after some training."""
    norm = BatchRenorm(*(shape or (1, 4))).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in norm.parameters():
        nn.init.normal_(parameter, generator=generator)
    norm.mean.normal_(std=0.3, generator=generator)
    norm.variance.uniform_(0.5, 2.0, generator=generator)
    norm.count.fill_(count)
    return norm


def batch(*shape: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs, and a mask that leaves out a third of them."""
    x = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return x, torch.arange(shape[-2]) % 3 != 1


@pytest.mark.parametrize("count", [0, WARM_UP - 1])
def test_a_batch_is_normalised_by_its_own_moments_until_it_is_warm(count: int) -> None:
    norm, (x, mask) = layer(count), batch(30, 4)
    weight, bias = norm.weight[0], norm.bias[0]
    expected = nn.functional.batch_norm(x[mask], None, None, weight, bias, training=True, eps=EPS)
    torch.testing.assert_close(norm(x, mask)[mask], expected, rtol=1e-12, atol=1e-12)


def test_a_warm_batch_is_normalised_by_the_running_moments_within_limits() -> None:
    norm, (x, mask) = layer(WARM_UP), batch(30, 4)
    torch.testing.assert_close(norm(x, mask), norm(x), rtol=1e-12, atol=1e-12)  # Ioffe's identity: nothing is clipped
    x[:, 0] *= 100
    x[:, 1] += 50
    values, running = norm(x, mask), norm(x)
    std, mean = x[mask].var(0, correction=0).add(EPS).sqrt(), x[mask].mean(0)
    offset = (mean - norm.mean[0]) / (norm.variance[0] + EPS).sqrt()
    for column, (ratio, shift) in enumerate([(3.0, float(offset[0].clamp(-5, 5))), (None, 5.0)]):
        r = ratio or float(std[column] / (norm.variance[0, column] + EPS).sqrt())
        centred = (x[:, column] - mean[column]) / std[column] * r + shift
        wanted = norm.weight[0, column] * centred + norm.bias[0, column]
        torch.testing.assert_close(values[:, column], wanted, rtol=1e-10, atol=1e-10)
        assert not torch.allclose(values[:, column], running[:, column])
    torch.testing.assert_close(values[:, 2:], running[:, 2:], rtol=1e-12, atol=1e-12)


def test_running_moments_move_when_they_are_told_and_masked_rows_do_not_count() -> None:
    norm, (x, mask) = layer(7), batch(30, 4)
    mean, variance = norm.mean.clone(), norm.variance.clone()
    x[~mask] = 1e6
    norm(x, mask)
    assert torch.equal(norm.mean, mean)
    assert norm.count == 7
    advance(nn.Sequential(nn.Linear(1, 1), norm))
    torch.testing.assert_close(norm.mean, DECAY * mean + (1 - DECAY) * x[mask].mean(0))
    torch.testing.assert_close(norm.variance, DECAY * variance + (1 - DECAY) * x[mask].var(0, correction=0))
    assert norm.count == 8
    before = norm.mean.clone()
    norm(x)  # a pass without a mask leaves nothing behind
    norm.advance()
    torch.testing.assert_close(norm.mean, DECAY * before + (1 - DECAY) * x[mask].mean(0))


def test_a_batch_of_masked_rows_alone_is_finite() -> None:
    norm, (x, mask) = layer(), batch(6, 4)
    loss = norm(x, torch.zeros_like(mask)).square().sum()
    loss.backward()
    assert loss.isfinite()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in norm.parameters())


@pytest.mark.parametrize("count", [0, WARM_UP])
def test_the_gradient_goes_through_the_moments_but_not_through_their_correction(count: int) -> None:
    """Against finite differences, with the correction held still."""
    norm, (x, mask) = layer(count), batch(7, 4, seed=3)
    variance, mean = torch.var_mean(x[mask], 0, correction=0, keepdim=True)
    ratio, offset = norm._correction(mean, (variance + EPS).sqrt())
    norm._correction = lambda mean, std: (ratio, offset)  # type: ignore[method-assign]
    held = torch.autograd.gradcheck(lambda given: norm(given, mask), x.requires_grad_())
    (with_correction,) = torch.autograd.grad(norm(x, mask)[mask].square().sum(), x)
    del norm._correction
    (found,) = torch.autograd.grad(norm(x, mask)[mask].square().sum(), x)
    assert held
    torch.testing.assert_close(found, with_correction, rtol=1e-12, atol=1e-12)


def test_each_critic_has_moments_of_its_own_and_sees_the_same_batch() -> None:
    norm, (x, mask) = layer(0, 3, 1, 4), batch(3, 30, 4)
    for number in range(3):
        alone = layer()
        for name, value in norm.state_dict().items():
            getattr(alone, name).data = value[number] if value.ndim else value
        torch.testing.assert_close(norm(x, mask)[number], alone(x[number], mask), rtol=1e-12, atol=1e-12)


def test_layers_are_normalised_before_each_linear_one_and_after_the_last() -> None:
    layers = NormalisedLayers(NetworkConfig(hidden_sizes=(8, 6), activation="tanh"), 4).double()
    assert [tuple(norm.mean.shape) for norm in batch_renorms(layers)] == [(1, 4), (1, 8), (1, 6)]
    x, mask = batch(30, 4)
    wanted, first = x[mask], [layer[0] for layer in layers.layers]  # type: ignore[index]
    for linear in [*first, None]:
        wanted = (wanted - wanted.mean(0)) / (wanted.var(0, correction=0) + EPS).sqrt()
        wanted = linear(wanted).tanh() if linear else wanted
    torch.testing.assert_close(layers(x, mask)[mask], wanted, rtol=1e-10, atol=1e-10)


def test_in_bfloat16_moments_have_the_parameters_type() -> None:
    layers = NormalisedLayers(NetworkConfig(hidden_sizes=(64, 64)), 4)
    x, mask = batch(300, 4)
    x = 10 + x.float()
    exact = layers(x, mask)
    with torch.autocast("cpu", torch.bfloat16):
        rough = layers(x, mask)
    assert rough.dtype == torch.float32
    assert (rough - exact).norm() < 0.02 * exact.norm()
    torch.testing.assert_close(batch_renorms(layers)[0]._noted[0], x[mask].mean(0, keepdim=True))


def test_critics_evaluate_by_running_moments_with_gradient_to_actions_only() -> None:
    torch.manual_seed(0)
    critics = Critics(NetworkConfig(hidden_sizes=(8, 8)), VECTORS, 2, batch_norm=True)
    for norm in batch_renorms(critics):
        norm.mean.normal_()
        norm.variance.uniform_(0.5, 2)
    inputs, action = torch.randn(5, 3), torch.rand(5, 2, requires_grad=True)
    expected, moments = critics(inputs, action), [norm._noted for norm in batch_renorms(critics)]
    (wanted,) = torch.autograd.grad(expected.sum(), action)
    q_values = critics.evaluate(inputs, action)
    torch.testing.assert_close(q_values, expected, rtol=0, atol=0)
    torch.testing.assert_close(critics.evaluate(inputs, action, 1), q_values[:1], rtol=1e-5, atol=1e-6)
    torch.autograd.backward(q_values.sum())
    torch.testing.assert_close(action.grad, wanted, rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in critics.parameters())
    assert all(norm._noted is noted for norm, noted in zip(batch_renorms(critics), moments, strict=True))
