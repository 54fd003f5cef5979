"""What holds for the loss of every algorithm that draws no random numbers, and for what every algorithm inherits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from apex_acer.algorithms import make_agent
from apex_acer.algorithms.acer.acer import Acer
from apex_acer.algorithms.algorithm import Algorithm
from apex_acer.algorithms.dqn.r2d2 import R2d2
from apex_acer.algorithms.samples import split
from apex_acer.learner.gradient import merge
from apex_acer.learner.parts import make_storage
from apex_acer.learner.trainer import Trainer
from apex_acer.networks.weights import pack, unpack
from apex_acer.protocol.metrics import METRICS
from tests.algorithms.learning import gradients, gradients_of, loss_of, samples_of
from tests.algorithms.segments import (
    CPU,
    build,
    build_continuous,
    flat,
    random_continuous_segments,
    random_segments,
)
from tests.algorithms.test_pqn import build_pqn
from tests.algorithms.test_pqn import sequences as pqn_sequences
from tests.algorithms.test_r2d2 import build_r2d2, sequences
from tests.algorithms.test_unreal import build_unreal
from tests.algorithms.test_unreal import sequences as replayed
from tests.algorithms.windows import build as build_windows
from tests.algorithms.windows import random_windows
from tests.conftest import config_error
from tests.runs import CARTPOLE, made_up_unroll, tiny_run

TD3 = {"num_critics": 2, "policy_every": 2, "target_noise": 0.4, "target_noise_clip": 0.3}


def with_windows(kind: str, **settings: Any) -> Callable[[int], tuple[Algorithm, Any]]:
    def make(seed: int) -> tuple[Algorithm, Any]:
        algorithm = build_windows(kind, seed, **settings)
        return algorithm, random_windows(algorithm, seed)

    return make


MADE: dict[str, Callable[[int], tuple[Algorithm, Any]]] = {
    "acer": lambda seed: (build(seed, lstm=6), random_segments(seed, lstm=6)[0]),
    "continuous_acer": lambda seed: (build_continuous(seed, lstm=6), random_continuous_segments(seed, lstm=6)[0]),
    "apex_dqn": with_windows("apex_dqn"),
    "r2d2": lambda seed: (build_r2d2(seed), sequences(seed)),
    "pqn": lambda seed: (build_pqn(seed), pqn_sequences(seed)[0]),
    "unreal": lambda seed: (build_unreal(seed), replayed(seed)[0]),
    "sac": with_windows("sac"),
    "crossq": with_windows("sac", batch_norm=True),
    "td3": with_windows("ddpg", **TD3),
    "ape-x dpg": with_windows("ddpg", replay__sampling="prioritized"),
}
EACH = pytest.mark.parametrize("name", MADE)


@pytest.mark.parametrize("name", [name for name in MADE if name != "crossq"])  # whose moments are the whole batch's
@pytest.mark.parametrize("num_parts", [2, 24])
def test_parts_of_a_batch_make_the_whole(name: str, num_parts: int) -> None:
    algorithm, batch = MADE[name](3)
    whole, gradient = gradients_of(algorithm, batch)
    assert whole.metrics.keys() <= METRICS.keys()
    assert not any(value.requires_grad for value in whole.metrics.values())
    parts = [algorithm.loss(part) for part in split(samples_of(algorithm, batch), num_parts)]
    assert len(parts) == min(num_parts, len(batch.importance))
    assert any(part.num_samples == 0 for part in parts) == (len(parts) == 24)
    merged = merge(parts)
    torch.testing.assert_close(merged, whole, rtol=1e-12, atol=1e-12)
    each = [gradients(part.loss, algorithm) for part in parts]
    for group, expected in gradient.items():
        summed = sum(one[group] * part.num_samples for one, part in zip(each, parts, strict=True))
        torch.testing.assert_close(summed / merged.num_samples, expected, rtol=1e-10, atol=1e-12)


@EACH
def test_what_was_done_on_a_masked_step_changes_nothing(name: str) -> None:
    """The observation counts, which may be the final one of a time limit; action, reward and extras do not."""
    algorithm, batch = MADE[name](1)
    other = replace(batch, action=batch.action.clone(), reward=batch.reward.clone())
    other = replace(other, extras={key: part.clone() for key, part in batch.extras.items()})
    masked = ~batch.mask
    other.action[masked] = 0
    other.reward[masked] = torch.nan
    for part in other.extras.values():
        part[masked] += 3
    assert masked.any()
    torch.testing.assert_close(gradients_of(algorithm, other), gradients_of(algorithm, batch), rtol=0, atol=0)


@EACH
def test_nothing_but_masked_steps_is_a_loss_of_zero(name: str) -> None:
    algorithm, batch = MADE[name](2)
    output, gradient = gradients_of(algorithm, replace(batch, mask=torch.zeros_like(batch.mask)))
    assert output.loss == output.num_samples == 0
    assert not any(part.any() for part in gradient.values())
    assert not output.priorities.any()
    assert all(value.isfinite() for value in output.metrics.values())


def narrowed(value: Any) -> Any:
    """In float32 where it was in float64."""
    if isinstance(value, dict):
        return {key: narrowed(part) for key, part in value.items()}
    return value.float() if value.dtype == torch.float64 else value


@EACH
def test_float32_agrees_with_float64(name: str) -> None:
    algorithm, batch = MADE[name](6)
    wide, expected = gradients_of(algorithm, batch)
    for module in algorithm.modules.values():
        module.float()
    small = replace(batch, **{key: narrowed(value) for key, value in vars(batch).items()})
    narrow, found = gradients_of(algorithm, small)
    assert narrow.loss.dtype == narrow.priorities.dtype == torch.float32
    torch.testing.assert_close(narrow.loss.double(), wide.loss, rtol=1e-5, atol=1e-5)
    for group, gradient in found.items():
        torch.testing.assert_close(gradient.double(), expected[group], rtol=1e-4, atol=1e-5)


@EACH
def test_all_modules_come_back_from_a_file(name: str) -> None:
    (saved, batch), (other, _) = MADE[name](8), MADE[name](9)
    assert not torch.equal(loss_of(other, batch).loss, loss_of(saved, batch).loss)
    other.load(unpack(pack(saved.tensors(), {})))
    torch.testing.assert_close(other.tensors(), saved.tensors(), rtol=0, atol=0)
    assert torch.equal(loss_of(other, batch).loss, loss_of(saved, batch).loss)
    vectors = [flat(module.parameters()) for module in saved.modules.values()]
    same = [one for one in vectors for another in vectors if one is not another and torch.equal(one, another)]
    assert not same  # so none was saved in place of another


def test_tensors_that_lack_a_module_are_refused_by_name() -> None:
    policy = {name: tensor for name, tensor in build(12).tensors().items() if name.startswith("network.")}
    message = config_error(lambda: build(13).load(policy))
    assert message == "weights: tensor average.pi_logits.bias is missing; expected [3]"


def test_observations_of_agents_that_wait_are_not_observed() -> None:
    config = tiny_run(network__normalise=True)
    algorithm: Any = Acer.make(config, replace(CARTPOLE, agents=2), CPU)
    unroll = made_up_unroll(config)
    unroll.mask[2:, 1] = False
    algorithm.observe(unroll, "a")
    seen = unroll.obs[-len(unroll.mask) :][unroll.mask]
    np.testing.assert_allclose(algorithm.network.normaliser.moments.mean.numpy(), seen.mean(0), rtol=1e-5)
    assert algorithm.network.normaliser.moments.count == unroll.mask.sum() < unroll.mask.size


def test_without_replay_observations_are_observed_after_their_update() -> None:
    """Also by an algorithm that can replay: the ratio of equal policies is 1."""
    config = tiny_run(network__normalise=True, algorithm__replay_ratio=0.0)
    trainer = Trainer(config, CARTPOLE)
    unroll = made_up_unroll(config)
    moments: Any = trainer.algorithm.network.normaliser
    trainer.algorithm.observe(unroll, "a")
    assert moments.moments.count == 0
    storage = make_storage(config, make_agent(config, CARTPOLE).layout, 1000)
    trainer.update(storage.gather(storage.insert(unroll, 0), unroll.num_columns, torch.ones(unroll.num_columns)), 0, 0)
    assert moments.moments.count == unroll.mask.size


def test_only_the_newest_planes_of_an_unroll_are_observed() -> None:
    """Neither the ones of a stack that come before, nor those of the burn-in, which the unroll before it had."""
    config = tiny_run(
        algorithm__name="r2d2",
        algorithm__burn_in=2,
        network__lstm=3,
        network__normalise=True,
        actors__environments=4,
    )
    algorithm: Any = R2d2.make(config, replace(CARTPOLE, stack=2), CPU)
    obs = np.random.default_rng(2).normal(size=(2 + 7, 4, 4)).astype(np.float32)
    algorithm.observe(made_up_unroll(config, obs=obs, action=np.zeros((7, 4), np.int64)), "a")
    moments = algorithm.network.normaliser.moments
    assert moments.count == 5 * 4
    np.testing.assert_allclose(moments.mean.numpy(), obs[-5:].mean((0, 1)), rtol=1e-5)
