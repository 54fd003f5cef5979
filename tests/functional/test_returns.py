"""Returns and advantages against their sums over each episode, and by their identities."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from apex_acer.functional import Advantages, gae, n_step_return, vtrace
from apex_acer.functional.returns import backward_recursion
from apex_acer.protocol.specification import Array
from tests.functional import reference, reference_q
from tests.functional import reference_on_policy as slow


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# n-step returns


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("gamma", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("length", [1, 3])
def test_n_step_returns_of_every_window_there_is(
    length: int, gamma: float, dtype: torch.dtype, tolerance: float
) -> None:
    """Any steps of it terminated, truncated, both or masked; and no reward beyond the end counts."""
    flags = list(itertools.product(itertools.product([False, True], repeat=3), repeat=length))
    terminated, truncated, mask = torch.tensor(flags).permute(2, 1, 0).clone()
    reward = torch.randn(mask.shape, generator=generator(length), dtype=dtype)
    columns = zip(*(tensor.T.tolist() for tensor in (reward, terminated, truncated, mask)), strict=True)
    expected = [reference_q.n_step(r, ended, timed_out, known, gamma) for r, ended, timed_out, known in columns]
    lengths = torch.tensor([each.length for each in expected])
    reward = torch.where(torch.arange(length).unsqueeze(-1) < lengths, reward, torch.nan)
    shaped = [tensor.view(length, 2, -1) for tensor in (reward, terminated, truncated, mask)]
    names = ("reward", "terminated", "truncated", "mask")
    found = n_step_return(**dict(zip(names, shaped, strict=True)), gamma=gamma)
    assert (found.reward.dtype, found.discount.dtype, found.length.dtype) == (dtype, dtype, torch.int64)
    for tensor, name in zip(found, ("reward", "discount", "length"), strict=True):
        wanted = [getattr(each, name) for each in expected]
        np.testing.assert_allclose(tensor.flatten(), wanted, rtol=tolerance, atol=tolerance)


# GAE and V-trace


GAMMA, LAMBDA = 0.9, 0.7
FLAGS = ("terminated", "truncated", "mask")
PRECISIONS = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
Function = Callable[..., Advantages]
EACH = pytest.mark.parametrize("function", [gae, vtrace])


def random_batch(seed: int, length: int = 14) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    episodes = reference.random_batch(seed, reference.Sizes(length, 9))
    batch = {name: episodes[name] for name in ("reward", *FLAGS)}
    batch["value"] = rng.normal(size=(length + 1, 9))
    return batch | {"log_rho": 2 * rng.normal(size=(length, 9))}


def tensors_of(function: Function, batch: dict[str, Array], dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    tensors = {name: torch.from_numpy(array.copy()) for name, array in batch.items()}
    if function is gae:
        del tensors["log_rho"]
    return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


def computed(
    function: Function, batch: dict[str, Array], dtype: torch.dtype = torch.float64, **settings: float
) -> tuple[Array, Array]:
    """What `function` makes of a batch, as arrays."""
    chosen: dict[str, Any] = {"gamma": GAMMA, "gae_lambda": LAMBDA} | settings
    found = function(**tensors_of(function, batch, dtype), **chosen)
    assert {tensor.dtype for tensor in found} == {dtype}
    return found.advantage.numpy(), found.value_target.numpy()


def assert_all_near(found: tuple[Array, Array], expected: tuple[Array, Array], tolerance: float = 1e-12) -> None:
    for actual, desired in zip(found, expected, strict=True):
        np.testing.assert_allclose(actual, desired, rtol=tolerance, atol=tolerance * np.abs(desired).max())


@PRECISIONS
@pytest.mark.parametrize(("length", "seed"), [(1, 0), (14, 1), (14, 2)])
def test_advantages_are_sums_over_each_episode(length: int, seed: int, dtype: torch.dtype, tolerance: float) -> None:
    """A time limit is bootstrapped from the final observation, which is the dummy step's, and a death is not."""
    batch = random_batch(seed, length)
    if length > 1:
        assert (batch["terminated"][:-1] & batch["mask"][1:]).any()  # a lost life
        assert (batch["truncated"][:-1] & ~batch["mask"][1:]).any()
        assert (batch["terminated"][:-1] & ~batch["mask"][1:]).any()
    assert_all_near(computed(gae, batch, dtype), slow.gae(batch, GAMMA, LAMBDA), tolerance)
    for rho_bar, c_bar in ((1.0, 1.0), (2.0, 0.8)):
        found = computed(vtrace, batch, dtype, rho_bar=rho_bar, c_bar=c_bar)
        assert_all_near(found, slow.vtrace(batch, GAMMA, LAMBDA, rho_bar, c_bar), tolerance)
    batch["mask"][:] = True  # an end without a dummy step after it ends the sum, too
    assert_all_near(computed(gae, batch, dtype), slow.gae(batch, GAMMA, LAMBDA), tolerance)
    assert_all_near(computed(vtrace, batch, dtype), slow.vtrace(batch, GAMMA, LAMBDA, 1.0, 1.0), tolerance)


@EACH
def test_nothing_is_passed_on_from_a_dummy_step(function: Function) -> None:
    """Whatever its reward and its ratio are, also at both ends of a segment."""
    batch = random_batch(6)
    batch["mask"][0, 0] = batch["mask"][-1, 1] = False
    expected = computed(function, batch)
    for name in ("reward", "log_rho"):
        batch[name] = np.where(batch["mask"], batch[name], np.nan)
    for found, desired in zip(computed(function, batch), expected, strict=True):
        np.testing.assert_array_equal(found, desired)
    assert not expected[0][~batch["mask"]].any()


@pytest.mark.parametrize("size", [90.0, np.inf])
def test_extreme_ratios_are_as_the_bounds(size: float) -> None:
    batch, bars = random_batch(9), {"rho_bar": 2.0, "c_bar": 0.5}
    impossible, certain, large = (batch | {"log_rho": np.full_like(batch["log_rho"], x)} for x in (-size, size, 5))
    advantage, value_target = computed(vtrace, impossible, torch.float32, **bars)
    np.testing.assert_allclose(advantage, 0, atol=1e-30)
    np.testing.assert_allclose(value_target, batch["value"][:-1].astype(np.float32))
    expected = slow.vtrace(large, GAMMA, LAMBDA, **bars)
    assert_all_near(computed(vtrace, certain, torch.float32, **bars), expected, 1e-5)


@EACH
def test_reads_no_number_from_its_device(function: Function) -> None:
    """Tensors on this device have no content to read; and results have no gradient."""
    tensors = {name: tensor.to("meta") for name, tensor in tensors_of(function, random_batch(0)).items()}
    tensors["value"].requires_grad_()
    found = function(**tensors, gamma=GAMMA, gae_lambda=LAMBDA)
    assert [(tensor.device.type, tensor.shape, tensor.requires_grad) for tensor in found] == 2 * [
        ("meta", (14, 9), False)
    ]


@EACH
def test_wrong_shapes_of_advantages_are_named(function: Function) -> None:
    batch = random_batch(0)
    for name in tensors_of(function, batch):
        with pytest.raises(ValueError, match="one row less than value" if name == "value" else name):
            computed(function, batch | {name: batch[name][:-1]})


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_slope_of_zero_passes_on_nothing_that_is_not_finite(value: float) -> None:
    offset, slope = torch.randn(2, 7, 3, generator=generator(8), dtype=torch.float64)
    slope[3] = 0
    clean = backward_recursion(offset, slope, torch.ones(3).double())
    offset[5] = value
    found = backward_recursion(offset, slope, torch.ones(3).double())
    assert torch.equal(found[:4], clean[:4])
    assert not found[4].isfinite().any()
