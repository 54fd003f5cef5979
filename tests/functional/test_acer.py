"""Retrace, ACER's policy gradient and the trust region against the paper, and by their identities."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from apex_acer.functional import acer_policy_gradient, kl_gradient, retrace, trust_region_projection
from apex_acer.protocol.specification import Array
from tests.functional import reference
from tests.functional.reference import assert_near, random_batch

GAMMA = 0.9
PRECISIONS = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])


# Retrace


def retrace_arguments(seed: int, dtype: torch.dtype = torch.float64) -> tuple[dict[str, Tensor], Array, Array]:
    """Random arguments of `retrace`, what the reference makes of them, and the mask."""
    rng = np.random.default_rng(seed)
    batch = reference.random_batch(seed)
    shape = batch["action"].shape
    q_taken, trace = rng.normal(size=shape), rng.uniform(size=shape)
    value = rng.normal(size=(shape[0] + 1, shape[1]))
    expected = reference.retrace(q_taken, value, batch["reward"], batch["terminated"], batch["truncated"], trace, GAMMA)
    arguments = {
        "q_taken": q_taken,
        "value": value[:-1],
        "bootstrap_value": value[-1],
        "reward": batch["reward"],
        "discount": GAMMA * (1 - batch["terminated"]),
        "trace": np.where(batch["mask"], trace, 0),
    }
    return {name: torch.as_tensor(array, dtype=dtype) for name, array in arguments.items()}, expected, batch["mask"]


@PRECISIONS
@pytest.mark.parametrize("seed", range(2))
def test_retrace_matches_the_sum_over_each_episode(seed: int, dtype: torch.dtype, tolerance: float) -> None:
    arguments, expected, mask = retrace_arguments(seed, dtype)
    assert (arguments["discount"] == 0).any()
    assert not mask.all()
    q_ret = retrace(**arguments)
    assert q_ret.dtype == dtype
    assert_near(q_ret, expected, tolerance)


def test_retrace_carries_no_gradient_and_leaves_its_arguments_alone() -> None:
    arguments, _, _ = retrace_arguments(2)
    before = {name: tensor.clone() for name, tensor in arguments.items()}
    for name in ("q_taken", "value"):
        arguments[name].requires_grad_()
    q_ret = retrace(**arguments)
    assert not q_ret.requires_grad
    q_ret.fill_(0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in arguments.items())


def test_nan_on_a_dummy_step_stays_there() -> None:
    arguments, expected, mask = retrace_arguments(4)
    for name in ("q_taken", "reward"):
        arguments[name][torch.from_numpy(~mask)] = torch.nan
    np.testing.assert_allclose(retrace(**arguments).numpy()[mask], expected[mask], rtol=1e-10)


def test_wrong_shapes_are_named() -> None:
    arguments, _, _ = retrace_arguments(0)
    for name in ("value", "reward", "discount", "trace", "bootstrap_value"):
        with pytest.raises(ValueError, match=name):
            retrace(**arguments | {name: arguments[name][..., :-1]})
    with pytest.raises(ValueError, match=r"\[2, 3\] and \[3\]"):
        trust_region_projection(torch.zeros(2, 3), torch.zeros(3), 1.0)


# the policy gradient


def gradient_arguments(seed: int) -> dict[str, Tensor]:
    """Random float64 arguments of `acer_policy_gradient` without its settings."""
    batch = random_batch(seed)
    q_ret = np.random.default_rng(seed).normal(size=batch["action"].shape)
    rows = {name: batch[name][:-1] for name in ("pi_logits", "q_values")}
    arrays = rows | {"mu_log_probs": batch["mu_log_probs"], "action": batch["action"], "q_ret": q_ret}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


@PRECISIONS
@pytest.mark.parametrize("threshold", [0.0, 2.0, math.inf])
def test_policy_gradient_matches_the_paper(threshold: float, dtype: torch.dtype, tolerance: float) -> None:
    arguments = {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in gradient_arguments(0).items()
    }
    result = acer_policy_gradient(**arguments, truncation_threshold=threshold, entropy_cost=0.05)
    assert result.dtype == dtype
    wide: Any = {name: tensor.double().numpy() for name, tensor in arguments.items()}
    for at in np.ndindex(arguments["action"].shape):
        pi, mu = reference.softmax(wide["pi_logits"][at]), np.exp(wide["mu_log_probs"][at])
        taken, q, q_ret = int(wide["action"][at]), wide["q_values"][at], wide["q_ret"][at]
        assert_near(result[at], reference.policy_gradient(pi, mu, taken, q, q_ret, threshold, 0.05), tolerance)


@pytest.mark.parametrize("threshold", [0.3, 5.0])
def test_truncation_has_no_bias(threshold: float) -> None:
    """Over actions drawn from mu, with Q_ret = Q, the mean is Q − V for every threshold."""
    arguments = gradient_arguments(3)
    pi, mu, q_values = arguments["pi_logits"].softmax(-1), arguments["mu_log_probs"].exp(), arguments["q_values"]
    mean = torch.zeros_like(pi)
    for action in range(pi.shape[-1]):
        arguments |= {"action": torch.full_like(arguments["action"], action), "q_ret": q_values[..., action]}
        gradient = acer_policy_gradient(**arguments, truncation_threshold=threshold, entropy_cost=0.0)
        mean += mu[..., action, None] * gradient
    torch.testing.assert_close(mean, q_values - (pi * q_values).sum(-1, keepdim=True))


# the trust region


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


def random_rows(seed: int, dtype: torch.dtype, num: int = 200) -> tuple[Tensor, Tensor]:
    g, k = torch.randn(2, num, 5, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    return g, k


def expected_rows(g: Tensor, k: Tensor, deltas: Tensor) -> Array:
    rows = zip(g.double().numpy(), k.double().numpy(), deltas.tolist(), strict=True)
    return np.array([reference.project(*row) for row in rows])


@PRECISIONS
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


def test_the_projection_moves_no_further_than_the_bound_needs() -> None:
    g, k = random_rows(3, torch.float64, 20)
    z = trust_region_projection(g, k, 0.5)
    assert ((k * z).sum(-1) <= 0.5 + 1e-12).all()
    generator = torch.Generator().manual_seed(4)
    for _ in range(100):
        other = g + torch.randn(g.shape, dtype=g.dtype, generator=generator)
        allowed = (k * other).sum(-1) <= 0.5
        assert ((other - g).norm(dim=-1) >= (z - g).norm(dim=-1) - 1e-12)[allowed].all()


@pytest.mark.parametrize("scale", [1e30, 1e-30, 1e-22])
def test_size_of_k_neither_overflows_nor_underflows(scale: float) -> None:
    g, k = random_rows(7, torch.float32)
    k *= scale
    # δ on the scale of k·g, so that about half of the rows bind however small k is
    delta = 0.1 * scale if scale < 1 else 1.0
    z = trust_region_projection(g, k, delta)
    np.testing.assert_allclose(z, expected_rows(g, k, torch.full((200,), delta).double()), rtol=1e-5, atol=1e-5)
    assert (z != g).any(-1).double().mean() > 0.3
