from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from apex_acer.actor.policy import load_policy
from apex_acer.networks import weights
from apex_acer.networks.normalisation import ObservationNormaliser, RewardScale, RunningMoments
from apex_acer.protocol.actions import Discrete
from apex_acer.protocol.specification import EnvironmentSpec
from tests.conftest import config_error
from tests.runs import MakeLearner, feed, numbered_unroll, speakers, tiny_run

CHUNKS = (1, 7, 2, 100, 1, 500)
NORMALISING = {"network__normalise": True, "algorithm__normalise_rewards": True}


def vectors(size: int = 3, stack: int = 1, dtype: str = "float32") -> ObservationNormaliser:
    return ObservationNormaliser(EnvironmentSpec((size,), dtype, Discrete(2, 0), stack, False, 1, (size,)))


def images(channels: int = 1, stack: int = 1, dtype: str = "uint8") -> ObservationNormaliser:
    return ObservationNormaliser(
        EnvironmentSpec((channels, 4, 5), dtype, Discrete(2, 0), stack, True, 1, (4, 5, channels))
    )


# moments


@pytest.mark.parametrize("offset", [0.0, 1e3, -3e4])
@pytest.mark.parametrize("shape", [(), (3,), (2, 4, 5)])
def test_moments_over_uneven_chunks_are_those_of_the_whole(shape: tuple[int, ...], offset: float) -> None:
    random = np.random.default_rng(0)
    moments, seen = RunningMoments(*shape), []
    for number, length in enumerate(CHUNKS):
        seen.append((offset + 0.3 * number + random.normal(size=(length, *shape))).astype(np.float32))
        moments.update(torch.from_numpy(seen[-1]))
    whole = np.concatenate(seen).astype(np.float64)
    assert moments.count == sum(CHUNKS)
    np.testing.assert_allclose(moments.mean.numpy(), whole.mean(0), rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(moments.variance.numpy(), whole.var(0), rtol=1e-4 + 2e-7 * abs(offset))


def test_moments_of_bytes_and_of_one_value() -> None:
    moments = RunningMoments(2)
    moments.update(torch.tensor([[250, 3]], dtype=torch.uint8))
    assert (moments.mean.tolist(), moments.variance.tolist()) == ([250, 3], [0, 0])
    moments.update(torch.tensor([[254, 3]], dtype=torch.uint8))
    assert (moments.mean.tolist(), moments.variance.tolist()) == ([252, 3], [4, 0])


def test_moments_follow_a_small_shift_of_large_numbers() -> None:
    random = np.random.default_rng(0)
    moments = RunningMoments()
    for mean in (1e4, 1e4 + 3):
        for values in torch.from_numpy(random.normal(mean, 1, (5000, 160)).astype(np.float32)):
            moments.update(values)
    assert moments.mean.item() == pytest.approx(1e4 + 1.5, abs=0.01)
    assert moments.variance.item() == pytest.approx(1 + 1.5**2, rel=0.01)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_an_update_that_is_not_finite_changes_nothing(value: float) -> None:
    moments = RunningMoments()
    moments.update(torch.tensor([1.0, 3.0]))
    moments.update(torch.tensor([2.0, value], dtype=torch.float64))
    assert (moments.count, moments.mean, moments.variance) == (2, 2, 1)


# observations


@pytest.mark.parametrize("shape", [(3,), (1, 4, 5)])
def test_numbers_are_centred_before_they_lose_digits(shape: tuple[int, ...]) -> None:
    normaliser = vectors(dtype="float64") if len(shape) == 1 else images(dtype="float64")
    planes = 1e9 + torch.randn(2, 50, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    normaliser.observe(planes)
    found = normaliser(planes[-1], torch.float32)
    seen = planes[-1] if len(shape) == 3 else planes.flatten(0, 1)
    assert found.dtype == torch.float32
    deviation = seen.var(0, correction=0).mean().sqrt() if len(shape) == 3 else seen.std(0, correction=0)
    torch.testing.assert_close(found, ((planes[-1] - seen.mean(0)) / deviation).float(), rtol=1e-4, atol=1e-4)


def test_a_constant_becomes_zero() -> None:
    normaliser = vectors()
    planes = torch.full((20, 50, 3), 1000.1)
    normaliser.observe(planes)
    assert normaliser(planes[0], torch.float32).abs().max() == 0


def test_each_element_of_a_vector_has_its_own_scale() -> None:
    random = np.random.default_rng(1)
    planes = random.normal([5, -1000, 0], [0.1, 30, 2], size=(60, 4, 3)).astype(np.float32)
    normaliser = vectors(stack=2)
    normaliser.observe(torch.from_numpy(planes))
    obs = random.normal(np.tile([5, -1000, 0], 2), np.tile([0.1, 30, 2], 2), size=(9, 6)).astype(np.float32)
    mean, std = planes.astype(np.float64).mean((0, 1)), planes.astype(np.float64).std((0, 1))
    expected = (obs - np.tile(mean, 2)) / np.tile(std, 2)
    assert abs(expected).max() < 10
    found = normaliser(torch.from_numpy(obs), torch.float64)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)


def test_vectors_are_clipped_at_ten_deviations() -> None:
    normaliser = vectors()
    normaliser.observe(torch.tensor([[[-1.0, 0.0, 7.0], [1.0, 4.0, 7.0]]]))  # means 0, 2, 7; deviations 1, 2, 0
    obs = torch.tensor([[9.9, 22.1, 7.0], [-11.0, -17.8, 7.5], [1e30, -1e30, 6.9]])
    expected = torch.tensor([[9.9, 10.0, 0.0], [-10.0, -9.9, 10.0], [10.0, -10.0, -10.0]])
    torch.testing.assert_close(normaliser(obs, torch.float32), expected)


@pytest.mark.parametrize("stack", [1, 3])
def test_pixels_have_their_own_mean_and_one_scale(stack: int) -> None:
    random = np.random.default_rng(2)
    planes = random.integers(0, 40, size=(6, 8, 2, 4, 5), dtype=np.uint8)
    planes[..., :2, :] += 200
    planes[:, :, 1, 0, 0] = 77  # a pixel that never changes
    normaliser = images(2, stack)
    normaliser.observe(torch.from_numpy(planes))
    newest = planes[-1].astype(np.float64)
    obs = random.integers(0, 256, size=(7, stack * 2, 4, 5), dtype=np.uint8)
    expected = (obs - np.tile(newest.mean(0), (stack, 1, 1))) / np.sqrt(newest.var(0).mean())
    for format in (torch.contiguous_format, torch.channels_last):
        given = torch.from_numpy(obs).contiguous(memory_format=format)
        found = normaliser(given, torch.float32)
        assert found.is_contiguous(memory_format=format)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(20,), (1, 4, 5)])
def test_bytes_are_scaled_to_one_before_anything_was_seen(shape: tuple[int, ...]) -> None:
    normaliser = vectors(20, dtype="uint8") if len(shape) == 1 else images()
    obs = torch.arange(20, dtype=torch.uint8).mul(13).view(1, *shape)
    torch.testing.assert_close(normaliser(obs, torch.float32), obs / 255)
    both = torch.cat([obs, obs // 2 + 100])
    normaliser.observe(both.unsqueeze(0))
    found = normaliser(both, torch.float32)  # the start has left no trace
    torch.testing.assert_close(found.mean(0), torch.zeros(shape), rtol=0, atol=1e-5)
    torch.testing.assert_close(found.square().mean().sqrt(), torch.tensor(1.0), rtol=1e-5, atol=0)


def test_numbers_stay_as_they_are_before_anything_was_seen() -> None:
    obs = torch.tensor([[0.5, -3.0, 8.0]])
    torch.testing.assert_close(vectors()(obs, torch.float32), obs)
    image = torch.randn(2, 1, 4, 5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(images(dtype="float32")(image, torch.float32), image)


@pytest.mark.parametrize("shape", [(3,), (1, 4, 5)])
def test_observations_are_left_as_they_were(shape: tuple[int, ...]) -> None:
    normaliser = vectors() if len(shape) == 1 else images(dtype="float32")
    planes = torch.randn(2, 6, *shape, generator=torch.Generator().manual_seed(0)) + 4
    kept = planes.clone()
    normaliser.observe(planes)
    assert not torch.equal(normaliser(planes[0], torch.float32), kept[0])
    assert torch.equal(planes, kept)


# rewards


def test_rewards_are_divided_by_the_deviation_of_discounted_returns() -> None:
    random = np.random.default_rng(3)
    scale, gamma = RewardScale(), 0.9
    carried: dict[tuple[str, int], float] = defaultdict(float)
    returns: list[float] = []
    for source in "abbaabbba":  # the unrolls of two actors as they come in
        reward = (random.normal(1, 2, size=(5, 3)) * (3 if source == "b" else 1)).astype(np.float32)
        ended = random.random((5, 3)) < 0.2
        begins = random.random(3) < 0.2  # as after a reset that no end came before
        mask = torch.from_numpy(random.random((5, 3)) < 0.8)
        rewards, ends = torch.from_numpy(reward), torch.from_numpy(ended)
        scale.observe(rewards, ends, mask, torch.from_numpy(begins), gamma, source)
        for t in range(5):
            for column in range(3):
                key = source, column
                carried[key] *= not (t == 0 and begins[column])
                carried[key] = gamma * carried[key] + float(reward[t, column])
                if mask[t, column]:
                    returns.append(carried[key])
                carried[key] *= not ended[t, column]
        expected = reward / np.std(returns)
        np.testing.assert_allclose(scale(torch.from_numpy(reward)).numpy(), expected, rtol=1e-4)
    assert scale.moments.count == len(returns)


def test_rewards_that_are_all_nothing_stay_finite() -> None:
    scale = RewardScale()
    nothing = torch.zeros(5, 3)
    scale.observe(nothing, nothing.bool(), ~nothing.bool(), nothing[0].bool(), 0.99, "a")
    assert torch.equal(scale(nothing), nothing)


@pytest.mark.parametrize("varies", [0.0, 1e-3])
def test_rewards_that_hardly_vary_are_not_blown_up(varies: float) -> None:
    """With a discount of 0 the returns of CartPole are its rewards, which are all 1: their deviation is no scale."""
    scale = RewardScale()
    reward = 1 + varies * torch.linspace(-1, 1, 15).view(5, 3)
    nothing = torch.zeros(5, 3, dtype=torch.bool)
    scale.observe(reward, nothing, ~nothing, nothing[0], 0.0, "a")
    torch.testing.assert_close(scale(reward), 10 * reward)


# what travels


def test_actors_are_sent_the_statistics_of_what_the_learner_has_seen(make_learner: MakeLearner) -> None:
    config = tiny_run(**NORMALISING)
    learner = make_learner(config)
    replies = feed(learner, speakers(learner)[0], config, 4, wants_weights=True)
    assert replies[-1].weights is not None
    sent = weights.unpack(replies[-1].weights)
    obs = np.concatenate([numbered_unroll(config, number).obs[-5:] for number in range(4)])
    assert sent["network.normaliser.moments.count"] == 4 * 5 * 4
    np.testing.assert_allclose(sent["network.normaliser.moments.mean"].numpy(), obs.mean((0, 1)), atol=1e-6)
    np.testing.assert_allclose(sent["network.normaliser.moments.variance"].numpy(), obs.var((0, 1)), rtol=1e-5)
    assert not any(name.startswith("rewards.") for name in sent)


def statistics(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if "moments" in name}


def test_a_weights_file_holds_them_and_gives_the_same_policy(make_learner: MakeLearner) -> None:
    config = tiny_run(**NORMALISING)
    learner = make_learner(config)
    feed(learner, speakers(learner)[0], config, 10)
    path = Path(learner.finish().weights)
    names = {f"moments.{name}" for name in ("count", "mean", "variance")}
    tensors, _ = weights.read(path)
    assert statistics(tensors).keys() == {
        f"{owner}.{name}" for owner in ("network.normaliser", "average.normaliser", "rewards") for name in names
    }
    obs = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    network, loaded = learner._trainer.algorithm.network, load_policy(path).network
    for one, other in zip(network(obs), loaded(obs), strict=True):
        assert torch.equal(one, other)
    loaded.normaliser.moments.mean += 1
    assert not torch.allclose(network(obs).q_values, loaded(obs).q_values)


def test_load_restores_them(make_learner: MakeLearner, tmp_path: Path) -> None:
    config = tiny_run(**NORMALISING)
    learner = make_learner(config)
    feed(learner, speakers(learner)[0], config, 10)
    path = learner.finish().weights
    before, _ = weights.read(path)
    again = make_learner(tiny_run(load=path, **NORMALISING))
    after, _ = weights.read(again.finish().weights)
    assert before["rewards.moments.count"] == 10 * 5 * 4
    assert before["rewards.moments.variance"] != 1
    assert statistics(before).keys() == statistics(after).keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in statistics(before).items())


def test_weights_without_statistics_do_not_fit_a_network_that_normalises(make_learner: MakeLearner) -> None:
    bare, normalising = tiny_run(), tiny_run(network__normalise=True)
    path = make_learner(bare).finish().weights
    message = config_error(lambda: make_learner(tiny_run(load=path, network__normalise=True)))
    assert message == f"{path}: network.normalise is False, this run's is True"
    path = make_learner(normalising).finish().weights
    message = config_error(lambda: make_learner(tiny_run(load=path)))
    assert message == f"{path}: network.normalise is True, this run's is False"
