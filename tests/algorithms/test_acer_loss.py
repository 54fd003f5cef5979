"""ACER's whole loss against a slow transcription of the paper, and by its identities."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from apex_acer.algorithms.acer.acer import acer_loss
from apex_acer.functional import acer_targets, forbid
from apex_acer.networks.discrete import ActorCriticOutput
from tests.functional import reference
from tests.functional.reference import Sizes, assert_near, random_batch

PRECISIONS = [(np.float32, 1e-5), (np.float64, 1e-10)]
SETTINGS = {
    "gamma": 0.9,
    "truncation_threshold": 2.0,
    "trust_region_delta": 0.5,
    "entropy_cost": 0.05,
    "q_cost": 0.5,
}


def tensors(batch):
    """The batch as tensors; the network's outputs are leaves with gradient."""
    given = {name: torch.from_numpy(array.copy()) for name, array in batch.items()}
    for name in ("pi_logits", "q_values"):
        given[name].requires_grad_()
    return given


def loss_of(given, **changes):
    """The loss of `tensors`."""
    output = ActorCriticOutput(given["pi_logits"], given["q_values"])
    settings = SimpleNamespace(**SETTINGS | changes)
    samples = SimpleNamespace(**given, extras={"log_probs": given["mu_log_probs"]}, discount=discount_of(given))
    return acer_loss(settings, samples, output, given["average_logits"], given["mask"])


def discount_of(given):
    """Gamma, or 0 where a step terminated."""
    return torch.full_like(given["reward"], SETTINGS["gamma"]).masked_fill(given["terminated"], 0.0)


def loss_and_gradients(batch, **changes):
    """The loss, d/d pi_logits and d/d q_values."""
    given = tensors(batch)
    loss = loss_of(given, **changes)
    return loss, *torch.autograd.grad(loss.loss, [given["pi_logits"], given["q_values"]])


def mean_error(error, mask):
    """Of each column's unmasked steps."""
    return error.sum(0) / mask.sum(0).clip(1)


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("delta", [0.05, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_loss_and_its_gradients_match_the_paper(seed, delta, dtype, tolerance):
    batch = random_batch(seed, dtype=dtype)
    batch["importance"] = np.random.default_rng(seed).uniform(0.2, 1.0, len(batch["importance"])).astype(dtype)
    changes = {"trust_region_delta": delta}
    expected = reference.acer_loss(batch, **SETTINGS | changes)
    loss, d_pi_logits, d_q_values = loss_and_gradients(batch, **changes)
    assert 0 < expected.bound_share < 1
    assert loss.loss.item() == pytest.approx(expected.total, rel=tolerance)
    assert_near(d_pi_logits, expected.d_pi_logits, tolerance)
    assert_near(d_q_values, expected.d_q_values, tolerance)
    assert_near(loss.priorities, mean_error(expected.td_error, batch["mask"]), tolerance)
    assert loss.metrics["trust_region_share"].item() == pytest.approx(expected.bound_share, rel=1e-6)


def test_without_bounds_it_is_the_importance_sampled_policy_gradient():
    """With c and δ out of the way, the gradient is that of ρ · advantage + entropy, as automatic differentiation has it."""
    batch = random_batch(4)
    changes = {"trust_region_delta": 1e12, "truncation_threshold": math.inf, "q_cost": 0.0}
    loss, d_pi_logits, _ = loss_and_gradients(batch, **changes)
    arguments = tensors(batch)
    taken = arguments["action"].unsqueeze(-1)
    logits, q = arguments["pi_logits"], arguments["q_values"].detach()
    log_pi = logits.log_softmax(-1)[:-1]
    q_taken = q[:-1].gather(-1, taken).squeeze(-1)
    value = (logits.softmax(-1) * q).sum(-1).detach()[:-1]
    q_ret = torch.from_numpy(reference_q_ret(batch))
    rho = (log_pi - arguments["mu_log_probs"]).gather(-1, taken).squeeze(-1).exp()
    objective = rho * (q_ret - value) - SETTINGS["entropy_cost"] * (log_pi.exp() * log_pi).sum(-1)
    (expected,) = torch.autograd.grad(-objective[arguments["mask"]].mean(), logits)
    torch.testing.assert_close(d_pi_logits, expected)
    error = torch.where(arguments["mask"], (q_ret - q_taken).abs(), 0.0)
    torch.testing.assert_close(loss.priorities, mean_error(error, arguments["mask"]))
    assert loss.metrics["trust_region_share"] == 0


def reference_q_ret(batch):
    pi = np.apply_along_axis(reference.softmax, -1, batch["pi_logits"])
    taken = batch["action"][..., None]
    rho = np.take_along_axis(pi[:-1] / np.exp(batch["mu_log_probs"]), taken, -1)[..., 0]
    q_taken = np.take_along_axis(batch["q_values"][:-1], taken, -1)[..., 0]
    value = (pi * batch["q_values"]).sum(-1)
    endings = batch["terminated"], batch["truncated"]
    return reference.retrace(q_taken, value, batch["reward"], *endings, np.minimum(1, rho), SETTINGS["gamma"])


def test_on_policy_targets_are_n_step_returns():
    batch = random_batch(5, Sizes(5, 2, 3))
    batch["q_values"][:] = batch["q_values"].mean(-1, keepdims=True)  # Q = V: no correction is left
    batch["mu_log_probs"] = np.log(np.apply_along_axis(reference.softmax, -1, batch["pi_logits"][:-1]))
    batch["terminated"][:] = batch["truncated"][:] = False
    batch["mask"][:] = True
    names = ("pi_logits", "q_values", "mu_log_probs", "action", "reward", "mask")
    given = tensors(batch)
    targets = acer_targets(**{name: given[name] for name in names}, discount=discount_of(given))
    returns = batch["q_values"][-1, :, 0]
    for t in reversed(range(5)):
        returns = batch["reward"][t] + SETTINGS["gamma"] * returns
        assert_near(targets.q_ret[t], returns, 1e-12)


@pytest.mark.parametrize("copies", [1, 64])
def test_trust_region_is_on_each_sample_whatever_the_batch(copies):
    """Equal columns give equal steps: the bound is not on the gradient of a mean."""
    batch = random_batch(6, Sizes(8, 1, 4))
    changes = {"trust_region_delta": 0.1}
    expected = reference.acer_loss(batch, **SETTINGS | changes)
    many = {name: np.repeat(array, copies, axis=min(1, array.ndim - 1)) for name, array in batch.items()}
    loss, d_pi_logits, _ = loss_and_gradients(many, **changes)
    assert expected.bound_share > 0.2
    assert loss.metrics["trust_region_share"].item() == pytest.approx(expected.bound_share)
    for copy in range(copies):
        assert_near(copies * d_pi_logits[:, copy], expected.d_pi_logits[:, 0], 1e-10)


def test_entropy_has_gradient_inside_the_trust_region():
    batch = random_batch(8)
    batch["q_values"][:] = batch["reward"][:] = 0  # nothing to gain but entropy
    batch["average_logits"] = 3 * batch["pi_logits"][:-1]  # surer than the policy: entropy leads away from it
    changes = {"entropy_cost": 0.3}
    _, free, _ = loss_and_gradients(batch, **changes, trust_region_delta=1e12)
    arguments = tensors(batch)
    log_pi = arguments["pi_logits"].log_softmax(-1)[:-1]
    entropy = -(log_pi.exp() * log_pi).sum(-1)[arguments["mask"]].mean()
    (expected,) = torch.autograd.grad(-0.3 * entropy, arguments["pi_logits"])
    torch.testing.assert_close(free, expected)
    assert free.abs().max() > 0

    changes["trust_region_delta"] = 0.02
    bound = reference.acer_loss(batch, **SETTINGS | changes)
    _, d_pi_logits, _ = loss_and_gradients(batch, **changes)
    assert 0 < bound.bound_share < 1
    assert_near(d_pi_logits, bound.d_pi_logits, 1e-10)


def test_q_loss_is_that_of_errors_that_are_not_zero():
    batch = random_batch(9)
    before = batch["q_values"].copy()
    arguments = tensors(batch)
    loss = loss_of(arguments)
    errors = (reference_q_ret(batch) - np.take_along_axis(before[:-1], batch["action"][..., None], -1)[..., 0])[
        batch["mask"]
    ]
    assert loss.metrics["q_loss"].item() == pytest.approx((0.5 * errors**2).mean())
    assert loss.metrics["q_loss"] > 0.1
    np.testing.assert_array_equal(arguments["q_values"].detach().numpy(), before)


def test_last_row_and_dummy_steps_get_no_gradient():
    batch = random_batch(10)
    _, d_pi_logits, d_q_values = loss_and_gradients(batch)
    for gradient in (d_pi_logits, d_q_values):
        assert not gradient[-1].any()
        assert not gradient[:-1][torch.from_numpy(~batch["mask"])].any()


def test_what_a_dummy_step_did_changes_nothing():
    """Its observation counts (the final one of a time limit); its action, its reward and its mu do not."""
    batch = random_batch(11)
    other = {name: array.copy() for name, array in batch.items()}
    dummy = ~batch["mask"]
    other["action"][dummy] = (other["action"][dummy] + 1) % 4
    other["reward"][dummy] = 1e3
    other["mu_log_probs"][dummy] = math.log(0.25)
    for one, two in zip(loss_and_gradients(batch)[1:], loss_and_gradients(other)[1:], strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)


def test_nothing_but_dummy_steps_is_a_loss_of_zero():
    batch = random_batch(12)
    batch["mask"][:] = False
    loss, d_pi_logits, d_q_values = loss_and_gradients(batch)
    assert loss.loss == 0
    assert not d_pi_logits.any()
    assert not d_q_values.any()
    assert all(math.isfinite(value) for value in loss.metrics.values())


# policies that are nearly deterministic


def near_deterministic(log_probability, dtype=np.float32):
    """One step that blames an action the policy all but excludes and the average policy does not."""
    return {
        "pi_logits": np.array([[[0.0, log_probability, -1.0]], [[0.0, 0.0, 0.0]]], dtype),
        "q_values": np.array([[[1.0, -1.0, 0.5]], [[0.0, 0.0, 0.0]]], dtype),
        "average_logits": np.zeros((1, 1, 3), dtype),
        "mu_log_probs": np.log(np.full((1, 1, 3), 1 / 3)).astype(dtype),
        "action": np.array([[1]]),
        "reward": np.array([[-2.0]], dtype),
        "terminated": np.array([[True]]),
        "truncated": np.array([[False]]),
        "mask": np.array([[True]]),
        "importance": np.ones(1, dtype),
    }


@pytest.mark.parametrize("log_probability", [-20.0, -60.0, -120.0, -1000.0])
def test_near_deterministic_policies_stay_finite(log_probability):
    batch = near_deterministic(log_probability)
    loss, *gradients = loss_and_gradients(batch)
    for x in (loss.loss, loss.priorities, *gradients, *loss.metrics.values()):
        assert torch.isfinite(x).all()


@pytest.mark.parametrize("log_probability", [-20.0, -60.0, -120.0])
def test_near_deterministic_policies_match_the_paper(log_probability):
    """k = −π_avg / π squared is beyond float32 here, but not beyond the reference's float64."""
    batch = near_deterministic(log_probability)
    changes = {"entropy_cost": 0.001, "trust_region_delta": 0.1}
    expected = reference.acer_loss(batch, **SETTINGS | changes)
    loss, d_pi_logits, d_q_values = loss_and_gradients(batch, **changes)
    assert loss.loss.item() == pytest.approx(expected.total, rel=1e-5)
    np.testing.assert_allclose(d_q_values.numpy(), expected.d_q_values, rtol=1e-5)
    assert_near(d_pi_logits, expected.d_pi_logits, 1e-5)
    assert loss.metrics["trust_region_share"] == expected.bound_share == 1


@pytest.mark.parametrize("delta", [0.05, 1.0])
def test_an_action_that_is_not_legal_changes_nothing(delta):
    """The loss and its gradients are those without it, whatever value it has, and it has no gradient of its own."""
    batch = random_batch(0, dtype=np.float32)
    with_others = {**batch}
    legal = torch.tensor([True] * batch["q_values"].shape[-1] + [False, False])
    for name in ("pi_logits", "average_logits", "mu_log_probs", "q_values"):
        others = np.random.default_rng(1).normal(size=(*batch[name].shape[:-1], 2)).astype(np.float32)
        with_others[name] = np.concatenate([batch[name], 100 * others], -1)
        if name != "q_values":
            with_others[name] = forbid(torch.from_numpy(with_others[name]), legal).numpy()
    changes = {"trust_region_delta": delta}
    expected, *gradients = loss_and_gradients(batch, **changes)
    loss, *found = loss_and_gradients(with_others, **changes)
    for gradient, with_zeros in zip(gradients, found, strict=True):
        torch.testing.assert_close(with_zeros[..., :-2], gradient)
        assert (with_zeros[..., -2:] == 0).all()
    assert expected.metrics["trust_region_share"] > 0
    for name, value in expected.metrics.items():
        torch.testing.assert_close(loss.metrics[name], value, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(loss.priorities, expected.priorities)
