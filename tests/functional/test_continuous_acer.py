"""ACER for continuous actions against a slow transcription of the paper, and by its identities."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

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
from apex_acer.functional.continuous_acer import ContinuousTargets
from apex_acer.protocol.specification import Array
from tests.functional import reference_continuous as reference
from tests.functional.reference import assert_near

PRECISIONS = pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 3e-5), (np.float64, 1e-10)])
GAMMA = 0.9
Given = tuple[dict[str, Array], dict[str, Tensor], Gaussian, Gaussian]


def given(seed: int, dtype: type[np.floating[Any]] = np.float64) -> Given:
    """A random batch in float64, its arrays as tensors of `dtype`, the current and the behaviour policy."""
    batch = reference.random_batch(seed, dtype=dtype)
    tensors = {name: torch.from_numpy(array.copy()) for name, array in batch.items()}
    generator = torch.Generator().manual_seed(0)
    tensors["q_opc"], tensors["q_other"] = torch.randn(2, *tensors["mask"].shape, generator=generator).to(
        tensors["value"]
    )
    wide = {name: array.astype(np.float64) if array.dtype == np.float32 else array for name, array in batch.items()}
    policy = Gaussian(tensors["mean"][:-1], tensors["log_std"])
    return wide, tensors, policy, Gaussian(tensors["mu_mean"], tensors["mu_log_std"])


def targets_of(tensors: dict[str, Tensor], policy: Gaussian, behaviour: Gaussian, q_taken: Tensor) -> ContinuousTargets:
    return continuous_acer_targets(
        **{name: tensors[name] for name in ("value", "reward", "mask")},
        discount=torch.full_like(tensors["reward"], GAMMA).masked_fill(tensors["terminated"], 0.0),
        log_rho=log_ratio(tensors["action"], policy, behaviour),
        q_taken=q_taken,
        action_dim=tensors["mean"].shape[-1],
    )


def gradient_of(tensors: dict[str, Tensor], policy: Gaussian, behaviour: Gaussian, threshold: float) -> Tensor:
    names = ("action", "other_action", "q_opc", "q_other")
    return continuous_acer_policy_gradient(
        **{name: tensors[name] for name in names},
        value=tensors["value"][:-1],
        policy=policy,
        behaviour=behaviour,
        truncation_threshold=threshold,
    )


def test_q_is_the_value_on_average_over_the_actions_sampled() -> None:
    _, tensors, *_ = given(0)
    value, others = tensors["value"][:-1], tensors["other_advantages"]
    q_values = torch.stack([stochastic_dueling(value, advantage, others) for advantage in others])
    torch.testing.assert_close(q_values.mean(0), value)
    one = stochastic_dueling(value, tensors["advantage"], others)
    torch.testing.assert_close(one - q_values[0], tensors["advantage"] - others[0])


def test_sampled_actions_are_constants_from_the_noise_given() -> None:
    _, tensors, policy, _ = given(1)
    policy.mean.requires_grad_()
    noise = torch.randn(4, *policy.mean.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    actions = sample_actions(policy, noise)
    torch.testing.assert_close((actions - policy.mean) / tensors["log_std"].exp(), noise)
    assert not actions.requires_grad


@PRECISIONS
@pytest.mark.parametrize("seed", range(2))
def test_targets_match_the_paper(seed: int, dtype: type[np.floating[Any]], tolerance: float) -> None:
    batch, tensors, policy, behaviour = given(seed, dtype)
    assert all(batch[name].any() for name in ("terminated", "truncated"))
    assert not batch["mask"].all()
    q_taken = tensors["value"][:-1] + tensors["advantage"]
    found = targets_of(tensors, policy, behaviour, q_taken)
    expected = reference.targets(batch, q_taken.double().numpy(), GAMMA)
    for one, two in zip((found.q_ret, found.q_opc, found.value_target), expected, strict=True):
        assert one.dtype == tensors["value"].dtype
        assert_near(one, two, tolerance)
    assert_near(found.rho, reference.ratios(batch)[0], 10 * tolerance)
    assert (found.rho > 1).any()
    assert (found.rho < 0.5).any()


def test_what_a_dummy_step_did_changes_no_target_before_it() -> None:
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


@PRECISIONS
@pytest.mark.parametrize("threshold", [0.0, 2.0, math.inf])
def test_policy_gradient_matches_the_paper(threshold: float, dtype: type[np.floating[Any]], tolerance: float) -> None:
    batch, tensors, policy, behaviour = given(6, dtype)
    result = gradient_of(tensors, policy, behaviour, threshold)
    assert result.dtype == policy.mean.dtype
    q_opc, q_other = tensors["q_opc"].tolist(), tensors["q_other"].tolist()
    expected = [
        reference.policy_gradient(
            reference.step_of(batch, t, b), q_opc[t][b], q_other[t][b], float(batch["value"][t, b]), threshold
        )
        for t, b in np.ndindex(batch["mask"].shape)
    ]
    assert_near(result.flatten(0, 1), expected, tolerance)


def test_k_is_the_gradient_of_the_divergence_from_the_average_policy() -> None:
    _, tensors, policy, _ = given(8)
    mean = policy.mean.clone().requires_grad_()
    average = Gaussian(tensors["average_mean"], policy.log_std)
    (expected,) = torch.autograd.grad(average.kl(Gaussian(mean, policy.log_std)).sum(), mean)
    torch.testing.assert_close(mean_kl_gradient(policy, average), expected)


def test_metrics_are_means_over_unmasked_steps() -> None:
    batch, tensors, policy, behaviour = given(10)
    value = tensors["value"][:-1]
    found = targets_of(tensors, policy, behaviour, value)
    metrics = continuous_acer_metrics(
        found,
        policy=policy,
        average=Gaussian(tensors["average_mean"], policy.log_std),
        value=value,
        is_bound=tensors["reward"] > 0,
        mask=tensors["mask"],
        truncation_threshold=2.0,
    )
    mask, (rho, _) = batch["mask"], reference.ratios(batch)
    divergences = [
        reference.kl(batch["average_mean"][t, b], batch["log_std"], batch["mean"][t, b], batch["log_std"])
        for t, b in zip(*np.nonzero(mask), strict=True)
    ]
    expected = {
        "average_policy_kl": np.mean(divergences),
        "rho": np.minimum(rho, 2)[mask].mean(),
        "truncated_share": (rho > 2)[mask].mean(),
        "trust_region_share": (batch["reward"] > 0)[mask].mean(),
        "value": batch["value"][:-1][mask].mean(),
        "q_ret": found.q_ret.numpy()[mask].mean(),
        "q_opc": found.q_opc.numpy()[mask].mean(),
        "action_std": np.exp(batch["log_std"]).mean(),
    }
    assert {name: metrics[name].item() for name in expected} == pytest.approx(expected)


# extremes


def test_an_action_that_the_policy_excludes_cuts_the_trace_in_any_dimension() -> None:
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


@pytest.mark.parametrize("far", [1e2, 1e25])
@pytest.mark.parametrize("which", ["policy", "behaviour"])
def test_ratios_beyond_float32_stay_finite(far: float, which: str) -> None:
    _, tensors, policy, behaviour = given(11, np.float32)
    if which == "policy":
        policy = Gaussian(policy.mean + far, policy.log_std)
    else:
        behaviour = Gaussian(behaviour.mean + far, behaviour.log_std)
        tensors["action"] = tensors["action"] + far  # what it did is likely by its own density
    tensors["other_action"] = policy.mean + 0.1
    found = targets_of(tensors, policy, behaviour, tensors["value"][:-1])
    average = Gaussian(tensors["average_mean"], policy.log_std)
    gradient = gradient_of(tensors, policy, behaviour, 5.0)
    z = trust_region_projection(gradient, mean_kl_gradient(policy, average), 1.0)
    assert all(torch.isfinite(x).all() for x in (*found, gradient, z))
    assert found.rho.max() < 1e-6
    torch.testing.assert_close(found.value_target, tensors["value"][:-1])  # nothing to learn from such an action
