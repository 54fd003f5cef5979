import numpy as np
import pytest
import torch

from apex_acer.functional.recursion import backward_recursion


def given(length):
    rng = np.random.default_rng(length)
    offset, slope = rng.normal(size=(2, length - 1, 3))
    return offset, slope, rng.normal(size=3)


@pytest.mark.parametrize("length", [1, 2, 3, 8, 21])
def test_is_the_loop_over_the_steps(length):
    offset, slope, last = given(length)
    expected = [last]
    for t in reversed(range(length - 1)):
        expected.insert(0, offset[t] + slope[t] * expected[0])
    found = backward_recursion(*map(torch.from_numpy, (offset, slope, last)))
    np.testing.assert_allclose(found, np.stack(expected), rtol=1e-12)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_slope_of_zero_passes_on_nothing_that_is_not_finite(value):
    offset, slope, last = given(8)
    slope[3] = 0
    clean = backward_recursion(*map(torch.from_numpy, (offset, slope, last)))
    offset[5] = value
    found = backward_recursion(*map(torch.from_numpy, (offset, slope, last)))
    assert torch.equal(found[:4], clean[:4])
    assert not found[4].isfinite().any()
