"""The trust region against its closed form; `tests/algorithms/test_acer.py` has the whole loss against the paper."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from apex_acer.functional import kl_gradient, retrace, trust_region_projection
from apex_acer.protocol.specification import Array
from tests.functional import reference


@pytest.mark.parametrize("log_probability", [-60.0, -120.0])
def test_trust_region_binds_where_k_overflows(log_probability: float) -> None:
    logits = torch.tensor([[[0.0, log_probability, -1.0]]])
    gradient = torch.tensor([[[0.5, -3.0, 0.2]]])
    k, delta = kl_gradient(logits.log_softmax(-1), torch.zeros(1, 1, 3).log_softmax(-1), 1.0)
    z = trust_region_projection(gradient, k, delta)
    expected = reference.project(gradient[0, 0].numpy(), -1 / 3 / reference.softmax(logits[0, 0].tolist()), 1.0)
    np.testing.assert_allclose(z[0, 0].numpy(), expected, rtol=1e-6, atol=1e-6)
    assert abs(z[0, 0, 1]) < 1e-6 < abs(gradient[0, 0, 1])
    assert ((k * z).sum(-1) <= delta + 1e-6).all()


def random_rows(seed: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    g, k = torch.randn(2, 200, 5, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    return g, k


def expected_rows(g: Tensor, k: Tensor, deltas: Tensor) -> Array:
    rows = zip(g.double().numpy(), k.double().numpy(), deltas.tolist(), strict=True)
    return np.array([reference.project(*row) for row in rows])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_the_projection_matches_the_closed_form(dtype: torch.dtype, tolerance: float) -> None:
    """With a bound for each row, and leading axes; what is within the bound, or has no k, stays bit for bit."""
    g, k = random_rows(0, dtype)
    k[:10] = 0
    delta = torch.linspace(0.01, 2, 200, dtype=dtype)
    z = trust_region_projection(g.view(2, 100, -1), k.view(2, 100, -1), delta.view(2, 100)).view_as(g)
    assert z.dtype == dtype
    np.testing.assert_allclose(z, expected_rows(g, k, delta), rtol=tolerance, atol=tolerance)
    within = (k * g).sum(-1) < 0.99 * delta
    assert 50 < within.sum() < 150
    assert z[within].numpy().tobytes() == g[within].numpy().tobytes()


@pytest.mark.parametrize("scale", [1e30, 1e-30, 1e-22])
def test_size_of_k_neither_overflows_nor_underflows(scale: float) -> None:
    g, k = random_rows(7, torch.float32)
    k *= scale
    # δ on the scale of k·g, so that about half of the rows bind however small k is
    delta = 0.1 * scale if scale < 1 else 1.0
    z = trust_region_projection(g, k, delta)
    np.testing.assert_allclose(z, expected_rows(g, k, torch.full((200,), delta).double()), rtol=1e-5, atol=1e-5)
    assert (z != g).any(-1).double().mean() > 0.3


def test_wrong_shapes_are_named() -> None:
    right = {name: torch.zeros(4, 3) for name in ("q_taken", "value", "reward", "discount", "trace")}
    right["bootstrap_value"] = torch.zeros(3)
    for name in right.keys() - {"q_taken"}:
        with pytest.raises(ValueError, match=name):
            retrace(**right | {name: torch.zeros(4, 2)})
    with pytest.raises(ValueError, match=r"\[2, 3\] and \[3\]"):
        trust_region_projection(torch.zeros(2, 3), torch.zeros(3), 1.0)
