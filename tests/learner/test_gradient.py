"""The gradient of a batch in parts, by a thread for each loss, and by several learners."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from apex_acer.actor.rollout import Rollout
from apex_acer.algorithms import algorithm_class, make_agent
from apex_acer.algorithms.algorithm import LossOutput
from apex_acer.algorithms.sac.sac import Sac
from apex_acer.algorithms.samples import Samples, split
from apex_acer.config import RunConfig
from apex_acer.learner.gradient import Gradient, make_gradient, num_parts
from apex_acer.learner.learner import Learner
from apex_acer.learner.optimizer import Optimizer, make_optimizer
from apex_acer.learner.parts import capacity, make_storage
from apex_acer.learner.ranks import ALONE, Ranks
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import Batch
from tests.algorithms import segments
from tests.algorithms.learning import samples_of
from tests.conftest import play
from tests.continuous import continuous_run
from tests.ranks import Group
from tests.runs import RUN_ID

CPU = torch.device("cpu")
SIZE = 12
build: Any = segments.build
flat: Any = segments.flat
random_segments: Any = segments.random_segments


def computed_in_parts(parts: int, batch: Batch, **settings: Any) -> tuple[LossOutput, torch.Tensor]:
    """The output and the gradient of `batch`, of ACER in float64."""
    acer = build(3, **settings)
    gradient = Gradient(acer, Optimizer(RunConfig(), acer.groups()), parts)
    try:
        for parameter in acer.network.parameters():
            parameter.grad.fill_(7.0)  # of another batch
        output = gradient.compute(samples_of(acer, batch), {"network"})
        assert not output.loss.requires_grad
        return output, flat([parameter.grad for parameter in acer.network.parameters()])
    finally:
        gradient.close()


@pytest.mark.parametrize(("parts", "lstm"), [(3, 0), (50, 6)])
def test_parts_make_the_whole(parts: int, lstm: int) -> None:
    batch, _ = random_segments(3, lstm=lstm)
    assert batch.mask.sum(0).unique().numel() > 1  # parts are not of equal weight
    whole, expected = computed_in_parts(1, batch, lstm=lstm)
    output, found = computed_in_parts(parts, batch, lstm=lstm)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(output.loss, whole.loss, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(output.priorities, whole.priorities)
    assert output.num_samples == whole.num_samples == batch.mask.sum()
    assert output.metrics.keys() == whole.metrics.keys()
    for name in whole.metrics:
        torch.testing.assert_close(output.metrics[name].double(), whole.metrics[name].double(), msg=name)
    assert all(torch.equal(computed_in_parts(parts, batch, lstm=lstm)[1], found) for _ in range(5))


def test_parts_leave_out_what_is_frozen_and_what_no_loss_reaches() -> None:
    """As layers of a user's own torso may be."""
    batch, _ = random_segments(3)
    found = []
    for parts in (1, 2):
        acer = build(3)
        acer.network.register_parameter("unused", torch.nn.Parameter(torch.ones(2, dtype=torch.float64)))
        acer.network.q_values.bias.requires_grad_(False)
        gradient = Gradient(acer, Optimizer(RunConfig(), acer.groups()), parts)
        gradient.compute(samples_of(acer, batch), {"network"})
        gradient.close()
        assert acer.network.q_values.bias.grad is None
        assert not acer.network.unused.grad.any()
        found.append(flat([p.grad for p in acer.network.parameters() if p.requires_grad]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-12)


def test_a_batch_with_nothing_to_learn_from_has_no_gradient_and_what_a_part_raises_is_raised() -> None:
    batch, _ = random_segments(5)
    output, found = computed_in_parts(2, dataclasses.replace(batch, mask=torch.zeros_like(batch.mask)))
    assert output.loss == 0
    assert output.num_samples == 0  # of several learners the others must not divide by one more than there are
    assert not found.any()
    with pytest.raises(RuntimeError):
        computed_in_parts(2, dataclasses.replace(batch, action=batch.action[1:]))


@pytest.mark.parametrize(("threads", "batch_size", "expected"), [(0, 16, 1), (2, 16, 2), (64, 16, 8), (4, 1, 1)])
def test_a_part_has_two_segments_at_least(threads: int, batch_size: int, expected: int) -> None:
    assert num_parts(threads, batch_size) == expected


# ── an algorithm that draws random numbers ──


def a_batch(config: RunConfig, ranks: Ranks = ALONE) -> tuple[EnvironmentSpec, Batch]:
    """A learner's share of samples of what a fresh policy did; parts of it have different numbers of steps."""
    environments, policy = play(config, 4)
    rollout = Rollout(environments, policy, seed=0)
    storage = make_storage(config, make_agent(config, policy.spec).layout, capacity(config))
    for _ in range(SIZE):
        storage.insert(rollout.unroll(config.algorithm.unroll_length), 0)
    environments.close()
    samples = torch.arange(0, 2 * SIZE, 2).chunk(ranks.count)[ranks.rank]
    return policy.spec, storage.gather(samples, num_fresh=2)


def a_run(algorithm: str, **changes: Any) -> RunConfig:
    return continuous_run("", algorithm, learner__batch_size=2 * SIZE, **changes)


Found = tuple[np.ndarray, dict[str, float]]


def computed(config: RunConfig, parts: int = 1, ranks: Ranks = ALONE, num_losses: int = 1, updates: int = 0) -> Found:
    """The gradient of all groups, the loss and metrics, of one batch and its noise, of which each learner has a share."""
    spec, batch = a_batch(config)
    torch.manual_seed(1)
    algorithm: Any = algorithm_class(config.algorithm.name).make(config, spec, CPU)
    whole = algorithm.samples.make(batch)
    own: Any = split(dataclasses.replace(whole, noise=algorithm.noise(whole)), ranks.count)[ranks.rank]
    algorithm.noise = lambda samples: own.noise
    optimizer = make_optimizer(config, algorithm.groups())
    optimizer.gradient.fill_(7.0)  # of another batch
    gradient = Gradient(algorithm, optimizer, parts, ranks, num_losses)
    output = gradient.compute(own, optimizer.due(updates))
    gradient.close()
    figures = {name: float(value) for name, value in output.metrics.items()}
    figures.pop("action_std", None)  # DDPG's is that of a batch's actions, and no mean of its parts'
    return optimizer.gradient.numpy().copy(), {**figures, "all": float(output.loss), "num": float(output.num_samples)}


def computed_by_one_of_several(ranks: Ranks, config: RunConfig) -> Found:
    return computed(config, ranks=ranks)


def assert_close(one: Found, other: Found) -> None:
    np.testing.assert_allclose(one[0], other[0], rtol=1e-4, atol=1e-6)
    assert one[1] == pytest.approx(other[1], rel=1e-4, abs=1e-6)
    assert np.abs(one[0]).max() > 1e-3


def test_parts_share_the_noise_of_the_whole() -> None:
    assert_close(computed(a_run("sac"), parts=5), computed(a_run("sac")))


@pytest.mark.parametrize(
    ("algorithm", "updates"), [("sac", 0), ("td3", 0), ("td3", 1), ("crossq", 0), ("crossq", 1)]
)  # the policy has no turn at 1
def test_a_thread_for_each_loss_changes_no_bit(algorithm: str, updates: int) -> None:
    config = a_run(algorithm)
    (gradient, figures), (expected, alone) = (computed(config, num_losses=num, updates=updates) for num in (2, 1))
    np.testing.assert_array_equal(gradient, expected)
    assert figures == alone
    assert np.abs(gradient).max() > 1e-3


@pytest.mark.parametrize("algorithm", ["sac", "td3", "continuous_acer"])
def test_two_learners_make_the_update_of_one(pair: Group, algorithm: str) -> None:
    """If each has its share of the random numbers, too."""
    config = a_run(algorithm)
    first, second = pair.run(computed_by_one_of_several, config)
    np.testing.assert_array_equal(first[0], second[0])
    assert_close(first, computed(config))


class OwnLoss(Sac):
    """A user's own, with a loss that is not the sum of the losses that it inherits."""

    def loss(self, samples: Samples) -> LossOutput:
        output = super().loss(samples)
        return output._replace(loss=2 * output.loss)


def test_each_loss_has_a_thread_if_the_learner_has_several_and_a_loss_of_ones_own_is_computed_whole() -> None:
    config = a_run("sac")
    spec, batch = a_batch(config)
    found, losses = [], []
    for kind, threads in ((Sac, 2), (Sac, 1), (OwnLoss, 2)):
        torch.manual_seed(1)
        algorithm = kind.make(config, spec, CPU)
        optimizer = make_optimizer(config, algorithm.groups())
        gradient = make_gradient(algorithm, optimizer, threads, 2 * SIZE)
        losses.append(gradient.compute(algorithm.samples.make(batch), optimizer.due(0)).loss)
        found.append(gradient._pool is not None)
        gradient.close()
    assert found == [True, False, False]
    torch.testing.assert_close(losses[1:], [losses[0], 2 * losses[0]])


def drawn(ranks: Ranks, config: RunConfig) -> list[np.ndarray]:
    """The noise of a new learner's first two batches, and of the first one after it was saved between them and resumed."""
    spec, batch = a_batch(config)

    def make(*, resume: bool = False) -> Learner:
        return Learner(config, spec, Path(config.out), RUN_ID, 0.0, ranks=ranks, resume=resume)

    def noise(learner: Learner) -> np.ndarray:
        algorithm: Any = learner._trainer.algorithm
        values = algorithm.noise(algorithm.samples.make(batch)).values()
        return np.concatenate([each.numpy().ravel() for each in values])

    learner = make()
    first = noise(learner)
    learner.save()
    return [first, noise(learner), noise(make(resume=True))]


def test_each_learner_draws_its_own_noise(pair: Group, tmp_path: Path) -> None:
    config = continuous_run(tmp_path, "sac", engine="ray", learner__count=2, actors__count=2)
    found = pair.run(drawn, config)
    assert found[0][1].tolist() == found[0][2].tolist()  # the first one, whose file it is, goes on exactly
    for one, other in zip(*found, strict=True):
        assert not np.intersect1d(one, other).size
