"""Updates of several optimizer steps on one batch: by several learners, and on parts of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from apex_acer.algorithms.on_policy.common import ADVANTAGE, standardise
from apex_acer.algorithms.samples import Sequences
from apex_acer.config import RunConfig
from apex_acer.learner.ranks import ALONE, Ranks
from apex_acer.learner.trainer import Trainer
from tests import on_policy
from tests.learner.test_gradient import SIZE, a_batch
from tests.ranks import Group
from tests.runs import made_up_unroll, tiny_run

NORMALISED: dict[str, Any] = {"network__normalise": True, "algorithm__normalise_rewards": True}
PPO: dict[str, Any] = {"algorithm__name": "ppo", "algorithm__epochs": 2, "algorithm__minibatches": 1}
PQN: dict[str, Any] = {"algorithm__name": "pqn", "algorithm__minibatches": 1, "network__layer_norm": True}
ACTOR_CRITIC: dict[str, Any] = {"algorithm__name": "actor_critic", "algorithm__normalise_advantages": True}
IMPALA: dict[str, Any] = {**ACTOR_CRITIC, "algorithm__targets": "vtrace", "algorithm__pipelined": True}
UPDATES: dict[str, dict[str, Any]] = {
    "ppo": {**PPO, **NORMALISED},
    "ppo, lstm": {**PPO, "network__lstm": 8},
    "ppo, curious": {**PPO, **NORMALISED, "algorithm__curiosity": 0.1},
    "actor_critic": ACTOR_CRITIC,
    "pqn": {**PQN, **NORMALISED},
    "pqn, lstm": {**PQN, "network__lstm": 8},
    "impala": {**IMPALA, **NORMALISED},
}


def a_run(**changes: Any) -> RunConfig:
    """Steps large enough to be told apart."""
    fixed = {
        "learner__batch_size": 2 * SIZE,
        "optimizer__name": "adam",
        "optimizer__learning_rate": 1e-2,
        "optimizer__eps": 0.1,
    }
    return tiny_run("", **(fixed | changes))


def updated(config: RunConfig, ranks: Ranks = ALONE) -> dict[str, np.ndarray]:
    """All weights after an update on one batch, of which each learner has a share, and the number of steps.

    The first learner has seen other observations than the second.
    """
    spec, batch = a_batch(config, ranks)
    scale = torch.arange(SIZE).chunk(ranks.count)[ranks.rank]  # the shares differ
    batch = dataclasses.replace(batch, reward=batch.reward * scale)
    trainer = Trainer(config, spec, ranks)
    unroll = made_up_unroll(config, seed=ranks.rank, spec=spec)
    trainer.algorithm.observe(dataclasses.replace(unroll, obs=unroll.obs * (1 + 5 * ranks.rank)), "actor")
    torch.manual_seed(1)
    update = trainer.update(batch, 0, 0)
    trainer.close()
    assert not update.num_skipped
    tensors = {name: tensor.detach().numpy().copy() for name, tensor in trainer.algorithm.tensors().items()}
    tensors["steps"] = np.array(len(update.metrics))
    return {name: array for name, array in tensors.items() if "moments" not in name}


def updated_by_one_of_several(ranks: Ranks, config: RunConfig) -> dict[str, np.ndarray]:
    return updated(config, ranks)


def assert_close(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_allclose(array, other[name], rtol=1e-3, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("name", UPDATES)
def test_two_learners_make_the_update_of_one(pair: Group, name: str) -> None:
    config = a_run(**UPDATES[name])
    first, second = pair.run(updated_by_one_of_several, config)
    for each, array in first.items():
        np.testing.assert_array_equal(array, second[each], err_msg=each)
    assert_close(first, updated(config))
    assert first["steps"] in (1, 2)


def test_advantages_are_standardised_over_all_that_is_learned_from() -> None:
    """Also those of several learners, of which each adds its sums; what is masked has no part in it."""
    generator = torch.Generator().manual_seed(0)
    advantage = 5 + 3 * torch.randn(6, 8, generator=generator)
    mask = torch.rand(6, 8, generator=generator) < 0.7
    whole = standardise(advantage, mask, lambda sums: None)
    assert whole[mask].mean().abs() < 1e-6
    assert (whole[mask].std(correction=0) - 1).abs() < 1e-6
    assert not whole[~mask].any()
    sums: list[torch.Tensor] = []
    parts = [(advantage[:, part], mask[:, part]) for part in (slice(0, 3), slice(3, 8))]
    for part in parts:
        standardise(*part, lambda own: sums.append(own.clone()))

    def add(own: torch.Tensor) -> None:
        own.copy_(sums[0] + sums[1])

    found = [standardise(*part, add) for part in parts]
    torch.testing.assert_close(torch.cat(found, 1), whole)


def test_advantages_that_are_all_alike_are_no_numbers_too_large() -> None:
    mask = torch.ones(4, 3, dtype=torch.bool)
    assert not standardise(torch.full((4, 3), 7.5), mask, lambda sums: None).any()
    assert not standardise(torch.full((4, 3), torch.nan), ~mask, lambda sums: None).any()


@pytest.mark.parametrize("name", ["ppo", "ppo_lstm"])
def test_minibatches_share_the_scale_of_the_batch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = a_run(**(on_policy.ALGORITHMS[name] | {"learner__batch_size": 2 * SIZE}))
    spec, batch = a_batch(config)
    trainer, seen = Trainer(config, spec), []
    compute = trainer.gradient.compute

    def spy(part: Sequences, due: set[str]) -> Any:
        seen.append(part.targets[ADVANTAGE][part.mask])
        return compute(part, due)

    monkeypatch.setattr(trainer.gradient, "compute", spy)
    update = trainer.update(batch, 0, 0)
    assert len(update.metrics) == len(seen) == 10  # 5 epochs of 2 minibatches
    for first, second in zip(seen[::2], seen[1::2], strict=True):
        both = torch.cat([first, second])
        assert len(both) == batch.mask.sum()
        assert both.mean().abs() < 1e-5
        assert (both.std(correction=0) - 1).abs() < 1e-5
        assert first.mean().abs() > 1e-3


def test_the_ratio_is_that_to_the_policy_as_it_acted() -> None:
    """Also if that was one of older weights: the behaviour is recorded, not computed anew."""
    config = a_run(algorithm__name="ppo", algorithm__epochs=1, algorithm__minibatches=1)
    spec, batch = a_batch(config)
    shares = []
    for older in (0.0, 0.5):
        extras = {"log_probs": batch.extras["log_probs"] - older}
        (metrics,) = Trainer(config, spec).update(dataclasses.replace(batch, extras=extras), 0, 0).metrics
        shares.append(float(metrics["clipped_share"]))
    assert shares[1] == 1 > shares[0]  # a ratio of e^0.5 times the first


@pytest.mark.parametrize("changes", [{"algorithm__name": "apex_dqn"}, PQN, *on_policy.ALGORITHMS.values()])
def test_a_batch_of_dummies_takes_no_step(changes: dict[str, Any]) -> None:
    """Momentum alone must not move the weights."""
    config = a_run(**(changes | {"learner__batch_size": 2 * SIZE}))
    spec, batch = a_batch(config)
    trainer = Trainer(config, spec)
    trainer.update(batch, 0, 0)
    before = {name: tensor.clone() for name, tensor in trainer.algorithm.tensors().items()}
    update = trainer.update(dataclasses.replace(batch, mask=torch.zeros_like(batch.mask)), 0, 1)
    assert not update.metrics or config.algorithm.name == "trpo"  # which counts a step of length 0
    assert not update.num_skipped
    for name, tensor in trainer.algorithm.tensors().items():
        assert torch.equal(tensor, before[name]), name
