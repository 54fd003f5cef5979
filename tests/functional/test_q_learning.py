"""Dueling networks and rescaled values against the papers; losses are in `tests/algorithms`, each whole."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from apex_acer.functional import dueling, rescale, sequence_priority, unscale
from tests.functional import reference_q


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-11)])
@pytest.mark.parametrize("actions", [1, 18])
def test_dueling_is_a_value_plus_advantages_around_zero(actions: int, dtype: torch.dtype, tolerance: float) -> None:
    numbers = torch.randn(35, 1 + actions, generator=torch.manual_seed(0), dtype=dtype)
    value, advantage = numbers[:, :1], numbers[:, 1:]
    result = dueling(value, advantage)
    assert result.dtype == dtype
    expected = [reference_q.dueling(*row) for row in zip(value, advantage, strict=True)]
    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)


def test_the_priority_of_a_sequence_is_mostly_its_largest_error_that_is_not_masked() -> None:
    generator = torch.manual_seed(3)
    error, mask = torch.randn(9, 50, generator=generator), torch.rand(9, 50, generator=generator) < 0.5
    mask[:, 0], mask[:, 1] = False, True
    expected = [reference_q.sequence_priority(error[:, b], mask[:, b].tolist()) for b in range(50)]
    np.testing.assert_allclose(sequence_priority(error, mask), expected, rtol=1e-5)
    assert expected[0] == 0


def magnitudes(dtype: torch.dtype) -> Tensor:
    positive = torch.logspace(-6, 6, 400, dtype=dtype)
    return torch.cat([-positive.flip(0), torch.zeros(1, dtype=dtype), positive])


@pytest.mark.parametrize(
    ("dtype", "relative", "absolute"), [(torch.float64, 1e-12, 1e-12), (torch.float32, 1e-5, 1e-6)]
)
def test_rescaling_and_its_inverse(dtype: torch.dtype, relative: float, absolute: float) -> None:
    values = magnitudes(dtype)
    scaled = rescale(values)
    assert scaled.dtype == unscale(scaled).dtype == dtype
    expected = [reference_q.rescale(value) for value in values.tolist()]
    np.testing.assert_allclose(scaled.numpy(), expected, rtol=relative, atol=absolute)
    np.testing.assert_allclose(unscale(scaled).numpy(), values.numpy(), rtol=relative, atol=absolute)
    np.testing.assert_allclose(rescale(unscale(scaled)).numpy(), scaled.numpy(), rtol=relative, atol=absolute)


@pytest.mark.parametrize("function", [rescale, unscale])
def test_both_are_odd_and_monotone(function: Callable[[Tensor], Tensor]) -> None:
    values = magnitudes(torch.float32)
    results = function(values)
    assert torch.equal(function(-values), -results)
    assert function(torch.zeros(1)) == 0
    assert (results.diff() >= 0).all()
    assert (function(values[values.abs() > 1e-2]).diff() > 0).all()
