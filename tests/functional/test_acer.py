"""Retrace, ACER's policy gradient and the trust region against the paper, and by their identities."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from apex_acer.functional import acer_policy_gradient, kl_gradient, retrace, trust_region_projection
from tests.functional import reference
from tests.functional.reference import assert_near, random_batch

# Retrace


GAMMA = 0.9


def given(seed, dtype):
    """Random arguments of `retrace`, and what the reference makes of them."""
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
    return {name: torch.as_tensor(array, dtype=dtype) for name, array in arguments.items()}, expected, batch


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("seed", range(5))
def test_retrace_matches_the_sum_over_each_episode(seed, dtype, tolerance):
    arguments, expected, batch = given(seed, dtype)
    assert batch["terminated"].any()
    assert batch["truncated"].any()
    assert not batch["mask"].all()
    q_ret = retrace(**arguments)
    assert q_ret.dtype == dtype
    np.testing.assert_allclose(q_ret.numpy(), expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())


def test_on_policy_with_whole_traces_is_the_n_step_return():
    rng = np.random.default_rng(0)
    length, columns = 6, 3
    reward, value, last = (
        rng.normal(size=(length, columns)),
        rng.normal(size=(length, columns)),
        rng.normal(size=columns),
    )
    expected = np.zeros_like(reward)
    for t in range(length):
        for s in range(t, length):
            expected[t] += GAMMA ** (s - t) * reward[s]
        expected[t] += GAMMA ** (length - t) * last
    q_ret = retrace(
        q_taken=torch.from_numpy(value),  # Q of every action is V
        value=torch.from_numpy(value),
        bootstrap_value=torch.from_numpy(last),
        reward=torch.from_numpy(reward),
        discount=torch.full((length, columns), GAMMA, dtype=torch.float64),
        trace=torch.ones(length, columns, dtype=torch.float64),
    )
    np.testing.assert_allclose(q_ret.numpy(), expected, rtol=1e-12)


def test_no_trace_is_one_step_targets():
    arguments, _, _ = given(1, torch.float64)
    arguments["trace"] = torch.zeros_like(arguments["trace"])
    after = torch.cat([arguments["value"][1:], arguments["bootstrap_value"][None]])
    assert torch.equal(retrace(**arguments), arguments["reward"] + arguments["discount"] * after)


def test_retrace_shares_no_storage_and_leaves_its_arguments_alone():
    arguments, _, _ = given(2, torch.float64)
    before = {name: tensor.clone() for name, tensor in arguments.items()}
    q_ret = retrace(**arguments)
    for name, tensor in arguments.items():
        assert torch.equal(tensor, before[name]), name
        assert tensor.untyped_storage().data_ptr() != q_ret.untyped_storage().data_ptr(), name
    q_ret.fill_(0)
    assert torch.equal(arguments["q_taken"], before["q_taken"])


def test_retrace_carries_no_gradient():
    arguments, _, _ = given(3, torch.float64)
    for name in ("q_taken", "value"):
        arguments[name].requires_grad_()
    assert not retrace(**arguments).requires_grad


def test_nan_on_a_dummy_step_stays_there():
    arguments, expected, batch = given(4, torch.float64)
    dummy = torch.from_numpy(~batch["mask"])
    for name in ("q_taken", "reward"):
        arguments[name][dummy] = torch.nan
    q_ret = retrace(**arguments).numpy()
    np.testing.assert_allclose(q_ret[batch["mask"]], expected[batch["mask"]], rtol=1e-10)


@pytest.mark.parametrize("name", ["value", "reward", "discount", "trace", "bootstrap_value"])
def test_wrong_shapes_of_retrace_are_named(name):
    arguments, _, _ = given(0, torch.float64)
    arguments[name] = arguments[name][..., :-1]
    with pytest.raises(ValueError, match=name):
        retrace(**arguments)


PRECISIONS = [(np.float32, 1e-5), (np.float64, 1e-10)]


def gradient_arguments(seed):
    """Random float64 arguments of `acer_policy_gradient` without its settings; π, μ and V with them."""
    batch = random_batch(seed)
    names = ("mu_log_probs", "action")
    arguments = {name: torch.from_numpy(batch[name]) for name in names}
    arguments |= {name: torch.from_numpy(batch[name][:-1]) for name in ("pi_logits", "q_values")}
    arguments["q_ret"] = torch.from_numpy(np.random.default_rng(seed).normal(size=batch["action"].shape))
    pi = arguments["pi_logits"].softmax(-1)
    return arguments, pi, arguments["mu_log_probs"].exp(), (pi * arguments["q_values"]).sum(-1, keepdim=True)


def entropy_gradient(pi, cost):
    return -cost * (1 + pi.log())


# the policy gradient


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("threshold", [0.0, 0.5, 2.0, 10.0, math.inf])
def test_policy_gradient_matches_the_paper(threshold, dtype, tolerance):
    arguments, *_ = gradient_arguments(0)
    arguments = {name: x if name == "action" else x.to(getattr(torch, dtype.__name__)) for name, x in arguments.items()}
    result = acer_policy_gradient(**arguments, truncation_threshold=threshold, entropy_cost=0.05)
    logits, mu, action, q, q_ret = (
        arguments[name].numpy() for name in ("pi_logits", "mu_log_probs", "action", "q_values", "q_ret")
    )
    assert str(result.dtype) == f"torch.{dtype.__name__}"
    for index in np.ndindex(action.shape):
        expected = reference.policy_gradient(
            reference.softmax(logits[index]),
            np.exp(mu[index].astype(np.float64)),
            action[index],
            q[index].astype(np.float64),
            float(q_ret[index]),
            threshold,
            0.05,
        )
        assert_near(result[index], expected, tolerance)


def test_threshold_zero_leaves_only_the_bias_correction():
    arguments, pi, _, value = gradient_arguments(1)
    result = acer_policy_gradient(**arguments, truncation_threshold=0.0, entropy_cost=0.05)
    torch.testing.assert_close(result, arguments["q_values"] - value + entropy_gradient(pi, 0.05))


def test_threshold_infinity_is_plain_importance_sampling():
    arguments, pi, mu, value = gradient_arguments(2)
    result = acer_policy_gradient(**arguments, truncation_threshold=math.inf, entropy_cost=0.05)
    taken = torch.nn.functional.one_hot(arguments["action"], pi.shape[-1])
    weighted = taken / mu * (arguments["q_ret"].unsqueeze(-1) - value)  # ρ / π = 1 / μ
    torch.testing.assert_close(result, weighted + entropy_gradient(pi, 0.05))


@pytest.mark.parametrize("threshold", [0.0, 0.3, 1.0, 5.0, math.inf])
def test_truncation_has_no_bias(threshold):
    """Over actions drawn from mu, with Q_ret = Q, the mean is Q − V for every threshold."""
    arguments, pi, mu, value = gradient_arguments(3)
    mean = torch.zeros_like(pi)
    for action in range(pi.shape[-1]):
        arguments["action"] = torch.full_like(arguments["action"], action)
        arguments["q_ret"] = arguments["q_values"][..., action]
        gradient = acer_policy_gradient(**arguments, truncation_threshold=threshold, entropy_cost=0.0)
        mean += mu[..., action, None] * gradient
    torch.testing.assert_close(mean, arguments["q_values"] - value)


# the trust region


@pytest.mark.parametrize("log_probability", [-60.0, -120.0])
def test_trust_region_binds_where_k_overflows(log_probability):
    logits = torch.tensor([[[0.0, log_probability, -1.0]]])
    gradient = torch.tensor([[[0.5, -3.0, 0.2]]])
    k, delta = kl_gradient(logits.log_softmax(-1), torch.zeros(1, 1, 3).log_softmax(-1), 1.0)
    z = trust_region_projection(gradient, k, delta)
    pi = reference.softmax(logits[0, 0].tolist())
    expected = reference.project(gradient[0, 0].tolist(), -1 / 3 / pi, 1.0)
    np.testing.assert_allclose(z[0, 0].numpy(), expected, rtol=1e-6, atol=1e-6)
    assert abs(z[0, 0, 1]) < 1e-6 < abs(gradient[0, 0, 1])
    assert ((k * z).sum(-1) <= delta + 1e-6).all()


def rows(seed, dtype, num_rows=200, width=5):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(num_rows, width, dtype=dtype, generator=generator) for _ in range(2))


def expected_rows(g, k, delta):
    return np.array(
        [reference.project(x, y, delta) for x, y in zip(g.double().numpy(), k.double().numpy(), strict=True)]
    )


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("delta", [0.01, 1.0])
def test_the_projection_matches_the_closed_form(delta, dtype, tolerance):
    g, k = rows(0, dtype)
    z = trust_region_projection(g, k, delta)
    assert z.dtype == dtype
    expected = expected_rows(g, k, delta)
    np.testing.assert_allclose(z.numpy(), expected, rtol=tolerance, atol=tolerance)
    assert 0 < (expected != g.double().numpy()).any(-1).mean() < 1


def test_the_projection_takes_a_bound_per_row_and_leading_axes():
    g, k = rows(1, torch.float64, num_rows=6)
    delta = torch.linspace(0.01, 2, 6, dtype=torch.float64)
    expected = [reference.project(*row) for row in zip(g.numpy(), k.numpy(), delta.tolist(), strict=True)]
    z = trust_region_projection(g.view(2, 3, -1), k.view(2, 3, -1), delta.view(2, 3))
    np.testing.assert_allclose(z.view(6, -1).numpy(), expected, rtol=1e-12)


def test_the_projection_keeps_the_bound():
    g, k = rows(2, torch.float64)
    before, after = (k * g).sum(-1), (k * trust_region_projection(g, k, 0.5)).sum(-1)
    assert (after <= 0.5 + 1e-12).all()
    torch.testing.assert_close(after[before > 0.5], torch.full_like(after[before > 0.5], 0.5))


def test_the_projection_moves_along_k_only_and_no_further_than_needed():
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


def test_shapes_of_g_and_k_must_agree():
    with pytest.raises(ValueError, match=r"\[2, 3\] and \[3\]"):
        trust_region_projection(torch.zeros(2, 3), torch.zeros(3), 1.0)
