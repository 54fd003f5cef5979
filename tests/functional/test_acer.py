import math

import numpy as np
import pytest
import torch

from apex_acer.functional import acer_policy_gradient, kl_gradient
from apex_acer.functional import trust_region_projection as project
from tests.functional import reference
from tests.functional.reference import assert_near, random_batch

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
    z = project(gradient, k, delta)
    pi = reference.softmax(logits[0, 0].tolist())
    expected = reference.project(gradient[0, 0].tolist(), -1 / 3 / pi, 1.0)
    np.testing.assert_allclose(z[0, 0].numpy(), expected, rtol=1e-6, atol=1e-6)
    assert abs(z[0, 0, 1]) < 1e-6 < abs(gradient[0, 0, 1])
    assert ((k * z).sum(-1) <= delta + 1e-6).all()
