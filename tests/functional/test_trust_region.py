import numpy as np
import pytest
import torch

from apex_acer.functional import trust_region_projection
from tests.functional import reference


def rows(seed, dtype, num_rows=200, width=5):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(num_rows, width, dtype=dtype, generator=generator) for _ in range(2))


def expected_rows(g, k, delta):
    return np.array(
        [reference.project(x, y, delta) for x, y in zip(g.double().numpy(), k.double().numpy(), strict=True)]
    )


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("delta", [0.01, 1.0])
def test_matches_the_closed_form(delta, dtype, tolerance):
    g, k = rows(0, dtype)
    z = trust_region_projection(g, k, delta)
    assert z.dtype == dtype
    expected = expected_rows(g, k, delta)
    np.testing.assert_allclose(z.numpy(), expected, rtol=tolerance, atol=tolerance)
    assert 0 < (expected != g.double().numpy()).any(-1).mean() < 1


def test_takes_a_bound_per_row_and_leading_axes():
    g, k = rows(1, torch.float64, num_rows=6)
    delta = torch.linspace(0.01, 2, 6, dtype=torch.float64)
    expected = [reference.project(*row) for row in zip(g.numpy(), k.numpy(), delta.tolist(), strict=True)]
    z = trust_region_projection(g.view(2, 3, -1), k.view(2, 3, -1), delta.view(2, 3))
    np.testing.assert_allclose(z.view(6, -1).numpy(), expected, rtol=1e-12)


def test_result_keeps_the_bound():
    g, k = rows(2, torch.float64)
    before, after = (k * g).sum(-1), (k * trust_region_projection(g, k, 0.5)).sum(-1)
    assert (after <= 0.5 + 1e-12).all()
    torch.testing.assert_close(after[before > 0.5], torch.full_like(after[before > 0.5], 0.5))


def test_moves_along_k_only_and_no_further_than_needed():
    g, k = rows(3, torch.float64, num_rows=20)
    z = trust_region_projection(g, k, 0.5)
    generator = torch.Generator().manual_seed(4)
    for _ in range(100):
        other = g + torch.randn(g.shape, dtype=g.dtype, generator=generator)
        allowed = (k * other).sum(-1) <= 0.5
        assert ((other - g).norm(dim=-1) >= (z - g).norm(dim=-1) - 1e-12)[allowed].all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_within_the_bound_come_back_bit_for_bit(dtype):
    g, k = rows(5, dtype)
    within = (k * g).sum(-1) < 0.99
    z = trust_region_projection(g, k, 1.0)
    assert 0 < within.sum() < len(within)
    assert z[within].numpy().tobytes() == g[within].numpy().tobytes()


def test_zero_k_changes_nothing():
    g, _ = rows(6, torch.float32)
    assert torch.equal(trust_region_projection(g, torch.zeros_like(g), 1.0), g)


@pytest.mark.parametrize("scale", [1e30, 1e-30, 1e-22])
def test_size_of_k_neither_overflows_nor_underflows(scale):
    g, k = rows(7, torch.float32)
    k *= scale
    # δ on the scale of k·g, so that about half of the rows bind however small k is
    delta = 0.1 * scale if scale < 1 else 1.0
    z = trust_region_projection(g, k, delta)
    expected = expected_rows(g, k, delta)
    np.testing.assert_allclose(z.numpy(), expected, rtol=1e-5, atol=1e-5)
    assert (z != g).any(-1).double().mean() > 0.3


def test_shapes_must_agree():
    with pytest.raises(ValueError, match=r"\[2, 3\] and \[3\]"):
        trust_region_projection(torch.zeros(2, 3), torch.zeros(3), 1.0)
