"""TRPO's natural step on its own networks, in float64: Fisher matrix, bound on the KL divergence, line search."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from apex_acer.algorithms.on_policy import trpo
from apex_acer.algorithms.on_policy.common import ADVANTAGE
from apex_acer.algorithms.on_policy.trpo import Trpo
from apex_acer.algorithms.samples import without_last
from apex_acer.functional import Categorical, Factored, Gaussian, fisher_product
from apex_acer.protocol.specification import EnvironmentSpec
from tests.algorithms.learning import batch_of, made, samples_of
from tests.runs import BOX, CARTPOLE

T, B = 6, 8
SPECS = pytest.mark.parametrize("spec", [CARTPOLE, BOX], ids=["discrete", "box"])


def build(spec: EnvironmentSpec, seed: int = 0, **settings: Any) -> Trpo:
    small: dict[str, Any] = {"network__hidden_sizes": (5,), "network__activation": "tanh", "damping": 0.0}
    algorithm = made("trpo", spec, seed, **small | settings)
    assert isinstance(algorithm, Trpo)
    return algorithm


def a_batch(algorithm: Trpo, seed: int = 0) -> Any:
    """Steps that the algorithm's own policy took, some of them dummies, with advantages."""
    torch.manual_seed(seed)
    obs = torch.randn(T + 1, B, 4, dtype=torch.float64)
    policy = algorithm.network.head.distribution(algorithm.network(obs[:-1].flatten(0, 1)))
    with torch.no_grad():
        action, extras = algorithm.network.head.sample(policy, torch.Generator().manual_seed(seed), greedy=False)
    recorded = {name: part.detach().double().view(T, B, *part.shape[1:]) for name, part in extras.items()}
    batch = batch_of(obs, action.view(T, B, *action.shape[1:]), extras=recorded, mask=torch.rand(T, B) < 0.8)
    advantage = torch.randn(T, B, dtype=torch.float64)
    return dataclasses.replace(without_last(samples_of(algorithm, batch)), targets={ADVANTAGE: advantage})


def weights(algorithm: Trpo) -> Tensor:
    """The policy's, in one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in algorithm._parameters])


def policy_of(algorithm: Trpo, batch: Any) -> Any:
    """Of all steps but dummies."""
    policy, _ = algorithm.network.evaluate(batch.obs.flatten(0, 1), batch.first, {})
    return type(policy)(*(tensor[batch.mask] for tensor in policy))


def jacobian(outputs: Tensor, parameters: list[Tensor]) -> Tensor:
    """`[outputs, n]`, one row at a time."""
    rows = [
        torch.autograd.grad(output, parameters, retain_graph=True, materialize_grads=True)
        for output in outputs.flatten()
    ]
    return torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])


def fisher_matrix(policy: Any, parameters: list[Tensor]) -> Tensor:
    """The mean over steps of E[∇ log π(a) ∇ log π(a)ᵀ], exactly."""
    if isinstance(policy, Factored):
        policy = Categorical(*policy)  # of a single choice
    if isinstance(policy, Categorical):
        steps, num_actions = policy.log_probs.shape
        scores = jacobian(policy.log_probs, parameters)  # [steps * A, n]
        weights = policy.log_probs.exp().detach().flatten() / steps
        assert len(scores) == steps * num_actions
        return scores.T @ (weights.unsqueeze(-1) * scores)
    assert isinstance(policy, Gaussian)
    mean, log_std = jacobian(policy.mean, parameters), jacobian(policy.log_std, parameters)
    precision = (-2 * policy.log_std).exp().detach().flatten().unsqueeze(-1)
    return (mean.T @ (precision * mean) + 2 * log_std.T @ log_std) / len(policy.mean)


@SPECS
def test_products_are_those_of_the_policy_s_damped_fisher_matrix(
    spec: EnvironmentSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the algorithm itself makes them: dummies left out, the policy before the step as the reference."""
    found: list[Tensor] = []
    algorithm = build(spec, damping=0.1)
    batch = a_batch(algorithm)
    expected = fisher_matrix(policy_of(algorithm, batch), algorithm._parameters)
    expected += 0.1 * torch.eye(len(expected), dtype=torch.float64)

    def spy(kl: Tensor, parameters: list[Tensor], damping: float) -> Any:
        product = fisher_product(kl, parameters, damping)
        found.append(torch.stack([product(row) for row in torch.eye(len(expected), dtype=torch.float64)]))
        return product

    monkeypatch.setattr(trpo, "fisher_product", spy)
    algorithm.improve(batch)
    torch.testing.assert_close(found, [expected])


def surrogate(policy: Any, old: Any, batch: Any, spec: EnvironmentSpec) -> Tensor:
    action = batch.action if spec is CARTPOLE else batch.extras["sample"]
    taken = action[batch.mask]
    ratio = (policy.log_prob(taken) - old.log_prob(taken)).exp()
    mean: Tensor = (ratio * batch.targets[ADVANTAGE][batch.mask]).mean()
    return mean


@pytest.mark.parametrize(("spec", "max_kl"), [(CARTPOLE, 0.01), (BOX, 0.5)], ids=["discrete", "box"])
def test_every_step_improves_the_surrogate_within_the_bound(spec: EnvironmentSpec, max_kl: float) -> None:
    scales = []
    for seed in range(6):
        algorithm = build(spec, seed, max_kl=max_kl)
        batch = a_batch(algorithm, seed)
        with torch.no_grad():
            old = policy_of(algorithm, batch)
        metrics = algorithm.improve(batch)
        with torch.no_grad():
            new = policy_of(algorithm, batch)
        divergence = old.kl(new).mean()
        scales.append(float(metrics["step_scale"]))
        assert 0 < divergence <= max_kl, seed
        assert surrogate(new, old, batch, spec) > surrogate(old, old, batch, spec), seed
        torch.testing.assert_close(metrics["behaviour_kl"], divergence, rtol=1e-3, atol=1e-6, check_dtype=False)
    assert min(scales) < 1  # the bound took hold now and then


def test_a_parameter_without_a_part_in_the_policy_stays() -> None:
    """A user's torso may have one."""
    changed = []
    for num in (0, 3):
        algorithm = build(CARTPOLE)
        batch = a_batch(algorithm)
        algorithm._parameters.append(nn.Parameter(torch.ones(num, dtype=torch.float64)))
        algorithm.improve(batch)
        changed.append(weights(algorithm))
    torch.testing.assert_close(changed[1], torch.cat([changed[0], torch.ones(3, dtype=torch.float64)]))


@SPECS
def test_dummies_change_nothing(spec: EnvironmentSpec) -> None:
    steps = []
    for garbage in (0.0, 1e3):
        algorithm = build(spec)
        batch = a_batch(algorithm)
        advantage = torch.where(batch.mask, batch.targets[ADVANTAGE], garbage)
        obs = batch.obs.clone()
        obs[~batch.mask] = garbage
        algorithm.improve(dataclasses.replace(batch, obs=obs, targets={ADVANTAGE: advantage}))
        steps.append(weights(algorithm))
    torch.testing.assert_close(steps[0], steps[1])


@pytest.mark.parametrize("advantage", [0.0, torch.nan])
def test_the_policy_stays_if_no_step_is_better(advantage: float) -> None:
    algorithm = build(BOX)
    batch, before = a_batch(algorithm), weights(algorithm)
    targets = {ADVANTAGE: torch.full((T, B), advantage, dtype=torch.float64)}
    metrics = algorithm.improve(dataclasses.replace(batch, targets=targets))
    assert metrics["step_scale"] == 0
    assert torch.equal(weights(algorithm), before)
