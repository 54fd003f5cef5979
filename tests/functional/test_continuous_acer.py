"""ACER for continuous actions against a slow transcription of the paper, and by its identities."""

import math

import numpy as np
import pytest
import torch

from apex_acer.functional import (
    Gaussian,
    continuous_acer_metrics,
    continuous_acer_policy_gradient,
    continuous_acer_targets,
    log_ratio,
    mean_kl_gradient,
    sample_actions,
    stochastic_dueling,
    trust_region_projection,
)
from tests.functional import reference_continuous as reference
from tests.functional.reference import assert_near

PRECISIONS = [(np.float32, 3e-5), (np.float64, 1e-10)]
GAMMA = 0.9


def given(seed, dtype=np.float64):
    """A random batch, its arrays as tensors, the current and the behaviour policy."""
    batch = reference.random_batch(seed, dtype=dtype)
    tensors = {name: torch.from_numpy(array.copy()) for name, array in batch.items()}
    policy = Gaussian(tensors["mean"][:-1], tensors["log_std"])
    return batch, tensors, policy, Gaussian(tensors["mu_mean"], tensors["mu_log_std"])


def targets_of(tensors, policy, behaviour, q_taken):
    names = ("value", "reward", "mask")
    return continuous_acer_targets(
        **{name: tensors[name] for name in names},
        discount=torch.full_like(tensors["reward"], GAMMA).masked_fill(tensors["terminated"], 0.0),
        log_rho=log_ratio(tensors["action"], policy, behaviour),
        q_taken=q_taken,
        action_dim=tensors["mean"].shape[-1],
    )


def gradient_of(tensors, policy, behaviour, threshold, **changes):
    names = ("action", "other_action", "q_opc", "q_other")
    found = {name: tensors[name] for name in names} | {"value": tensors["value"][:-1]} | changes
    return continuous_acer_policy_gradient(policy=policy, behaviour=behaviour, **found, truncation_threshold=threshold)


def with_values(tensors):
    """The Q of both actions, as if they were known."""
    generator = torch.Generator().manual_seed(0)
    q_opc, q_other = torch.randn(2, *tensors["mask"].shape, generator=generator).to(tensors["value"])
    return tensors | {"q_opc": q_opc, "q_other": q_other}


# stochastic dueling


def test_q_is_the_value_on_average_over_the_actions_sampled():
    _, tensors, *_ = given(0)
    value, others = tensors["value"][:-1], tensors["other_advantages"]
    q_values = torch.stack([stochastic_dueling(value, advantage, others) for advantage in others])
    torch.testing.assert_close(q_values.mean(0), value)
    one = stochastic_dueling(value, tensors["advantage"], others)
    torch.testing.assert_close(one - q_values[0], tensors["advantage"] - others[0])


def test_sampled_actions_are_constants_from_the_noise_given():
    _, tensors, policy, _ = given(1)
    policy.mean.requires_grad_()
    noise = torch.randn(4, *policy.mean.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    actions = sample_actions(policy, noise)
    torch.testing.assert_close((actions - policy.mean) / tensors["log_std"].exp(), noise)
    assert not actions.requires_grad


# targets


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("seed", range(4))
def test_targets_match_the_paper(seed, dtype, tolerance):
    batch, tensors, policy, behaviour = given(seed, dtype)
    assert all(batch[name].any() for name in ("terminated", "truncated"))
    assert not batch["mask"].all()
    q_taken = batch["value"][:-1] + batch["advantage"]
    found = targets_of(tensors, policy, behaviour, torch.from_numpy(q_taken))
    wide = {name: array.astype(np.float64) if array.dtype == np.float32 else array for name, array in batch.items()}
    expected = reference.targets(wide, q_taken.astype(np.float64), GAMMA)
    for one, two in zip((found.q_ret, found.q_opc, found.value_target), expected, strict=True):
        assert one.dtype == tensors["value"].dtype
        assert_near(one, two, tolerance)
    assert_near(found.rho, reference.ratios(wide)[0], 10 * tolerance)
    assert (found.rho > 1).any()
    assert (found.rho < 0.5).any()


def test_what_a_dummy_step_did_changes_no_target_before_it():
    _, tensors, policy, behaviour = given(5)
    q_taken, mask = tensors["value"][:-1] + tensors["advantage"], tensors["mask"]
    expected = targets_of(tensors, policy, behaviour, q_taken)
    other = tensors | {
        "action": torch.where(mask.unsqueeze(-1), tensors["action"], math.nan),
        "reward": torch.where(mask, tensors["reward"], math.nan),
    }
    found = targets_of(other, policy, behaviour, torch.where(mask, q_taken, math.nan))
    for one, two in zip(found, expected, strict=True):
        assert torch.equal(one[mask], two[mask])


# the policy gradient


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("threshold", [0.0, 0.5, 2.0, 5.0, math.inf])
def test_policy_gradient_matches_the_paper(threshold, dtype, tolerance):
    batch, tensors, policy, behaviour = given(6, dtype)
    tensors = with_values(tensors)
    result = gradient_of(tensors, policy, behaviour, threshold)
    assert result.dtype == policy.mean.dtype
    wide = {name: array.astype(np.float64) for name, array in batch.items()}
    expected = [
        reference.policy_gradient(
            reference.step_of(wide, t, b),
            float(tensors["q_opc"][t, b]),
            float(tensors["q_other"][t, b]),
            wide["value"][t, b],
            threshold,
        )
        for t, b in np.ndindex(batch["mask"].shape)
    ]
    assert_near(result.flatten(0, 1), expected, tolerance)


@pytest.mark.parametrize("threshold", [0.0, 0.3, 1.0, 5.0, math.inf])
def test_truncation_has_no_bias(threshold):
    """Over actions of mu and of the policy, the mean is ∇ E Q for every threshold; here Q = 3 a."""
    generator = torch.Generator().manual_seed(3)
    mean, log_std = torch.zeros(400_000, 1, 1).double() + 0.2, torch.tensor([0.0]).double()
    policy, behaviour = Gaussian(mean, log_std), Gaussian(mean - 0.4, log_std + 0.2)
    noise = torch.randn(2, *mean.shape, dtype=torch.float64, generator=generator)
    action = behaviour.mean + behaviour.log_std.exp() * noise[0]
    other = policy.mean + policy.log_std.exp() * noise[1]
    gradient = continuous_acer_policy_gradient(
        policy=policy,
        behaviour=behaviour,
        action=action,
        other_action=other,
        q_opc=3 * action.squeeze(-1),
        q_other=3 * other.squeeze(-1),
        value=3 * mean.squeeze(-1),
        truncation_threshold=threshold,
    )
    assert gradient.mean().item() == pytest.approx(3, abs=5 * gradient.std().item() / math.sqrt(len(mean)))


def test_threshold_infinity_is_plain_importance_sampling():
    """As automatic differentiation has it: ρ is a function of the mean."""
    _, tensors, policy, behaviour = given(7)
    tensors = with_values(tensors)
    mean = policy.mean.clone().requires_grad_()
    log_rho = torch.distributions.Normal(mean, policy.log_std.exp()).log_prob(tensors["action"]).sum(-1)
    log_rho = log_rho - torch.distributions.Normal(behaviour.mean, behaviour.log_std.exp()).log_prob(
        tensors["action"]
    ).sum(-1)
    objective = log_rho.exp() * (tensors["q_opc"] - tensors["value"][:-1])
    (expected,) = torch.autograd.grad(objective.sum(), mean)
    torch.testing.assert_close(gradient_of(tensors, policy, behaviour, math.inf), expected)


# the trust region


def test_k_is_the_gradient_of_the_divergence_from_the_average_policy():
    _, tensors, policy, _ = given(8)
    mean = policy.mean.clone().requires_grad_()
    normal = torch.distributions.Normal
    average = Gaussian(tensors["average_mean"], policy.log_std)
    divergence = torch.distributions.kl_divergence(
        normal(average.mean, average.log_std.exp()), normal(mean, policy.log_std.exp())
    )
    (expected,) = torch.autograd.grad(divergence.sum(), mean)
    torch.testing.assert_close(mean_kl_gradient(policy, average), expected)


def test_a_projected_step_adds_less_to_the_divergence():
    _, tensors, policy, behaviour = given(9)
    average = Gaussian(tensors["average_mean"], policy.log_std)
    gradient = gradient_of(with_values(tensors), policy, behaviour, 5.0)
    z = trust_region_projection(gradient, mean_kl_gradient(policy, average), 0.1)
    bound = (z != gradient).any(-1)
    assert 0 < bound.double().mean() < 1

    def divergence(step):
        moved = Gaussian(policy.mean + 1e-4 * step, policy.log_std)
        return torch.tensor(
            [
                reference.kl(a, policy.log_std, m, policy.log_std)
                for a, m in zip(average.mean.flatten(0, 1), moved.mean.flatten(0, 1), strict=True)
            ]
        ).view(bound.shape)

    assert (divergence(z) < divergence(gradient))[bound].all()


def test_metrics_are_means_over_unmasked_steps():
    batch, tensors, policy, behaviour = given(10)
    value = tensors["value"][:-1]
    found = targets_of(tensors, policy, behaviour, value)
    is_bound = tensors["reward"] > 0
    metrics = continuous_acer_metrics(
        found,
        policy=policy,
        average=Gaussian(tensors["average_mean"], policy.log_std),
        value=value,
        is_bound=is_bound,
        mask=tensors["mask"],
        truncation_threshold=2.0,
    )
    mask, (rho, _) = batch["mask"], reference.ratios(batch)
    divergences = [
        reference.kl(batch["average_mean"][t, b], batch["log_std"], batch["mean"][t, b], batch["log_std"])
        for t, b in zip(*np.nonzero(mask), strict=True)
    ]
    assert metrics["average_policy_kl"].item() == pytest.approx(np.mean(divergences))
    assert metrics["rho"].item() == pytest.approx(np.minimum(rho, 2)[mask].mean())
    assert metrics["truncated_share"].item() == pytest.approx((rho > 2)[mask].mean())
    assert metrics["trust_region_share"].item() == pytest.approx((batch["reward"] > 0)[mask].mean())
    assert metrics["value"].item() == pytest.approx(batch["value"][:-1][mask].mean())
    assert metrics["q_ret"].item() == pytest.approx(found.q_ret.numpy()[mask].mean())
    assert metrics["q_opc"].item() == pytest.approx(found.q_opc.numpy()[mask].mean())
    assert metrics["action_std"].item() == pytest.approx(np.exp(batch["log_std"]).mean())


# extremes


def test_an_action_that_the_policy_excludes_cuts_the_trace_in_any_dimension():
    """At ρ = e^−810 and d = 20 the trace is e^−40.5; were log ρ cut at −30, it would be 0.22."""
    zeros = torch.zeros(2, 1, 20)
    log_rho = log_ratio(zeros + 9, Gaussian(zeros, zeros), Gaussian(zeros + 9, zeros))
    reward = torch.tensor([[0.0], [100.0]])
    found = continuous_acer_targets(
        log_rho=log_rho,
        q_taken=reward * 0,
        value=torch.zeros(3, 1),
        reward=reward,
        discount=(reward == 0).float(),
        mask=reward >= 0,
        action_dim=20,
    )
    assert log_rho[0, 0].item() == pytest.approx(-810)
    assert found.q_ret[0, 0].item() == pytest.approx(100 * math.exp(-40.5), rel=1e-4)
    assert found.q_opc[0, 0] == 100
    assert found.value_target[1, 0] == 0


@pytest.mark.parametrize("far", [1e2, 1e6, 1e18, 1e25])
@pytest.mark.parametrize("which", ["policy", "behaviour"])
def test_ratios_beyond_float32_stay_finite(far, which):
    _, tensors, policy, behaviour = given(11, np.float32)
    if which == "policy":
        policy = Gaussian(policy.mean + far, policy.log_std)
    else:
        behaviour = Gaussian(behaviour.mean + far, behaviour.log_std)
        tensors["action"] = tensors["action"] + far  # what it did is likely by its own density
    tensors["other_action"] = policy.mean + 0.1
    found = targets_of(tensors, policy, behaviour, tensors["value"][:-1])
    average = Gaussian(tensors["average_mean"], policy.log_std)
    gradient = gradient_of(with_values(tensors), policy, behaviour, 5.0)
    z = trust_region_projection(gradient, mean_kl_gradient(policy, average), 1.0)
    for x in (*found, gradient, z):
        assert torch.isfinite(x).all()
    assert found.rho.max() < 1e-6
    torch.testing.assert_close(found.value_target, tensors["value"][:-1])  # nothing to learn from such an action
