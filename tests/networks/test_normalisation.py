from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

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

NORMALISING: dict[str, Any] = {"network__normalise": True, "algorithm__normalise_rewards": True}


def normaliser_of(shape: tuple[int, ...], dtype: str = "float32", stack: int = 1) -> ObservationNormaliser:
    return ObservationNormaliser(EnvironmentSpec(shape, dtype, Discrete(2, 0), stack, len(shape) == 3, 1, shape))


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(0))


# moments


@pytest.mark.parametrize(("shape", "offset"), [((), 1e4), ((3,), 0.0), ((2, 4, 5), -3e4)])
def test_moments_over_uneven_chunks_are_those_of_the_whole(shape: tuple[int, ...], offset: float) -> None:
    """Means of many large numbers are exact, too: in float32 they would stand still."""
    lengths = (1, 7, 0, 2, 100, 1, 500) * 30
    chunks = [offset + 0.01 * number + random(length, *shape) for number, length in enumerate(lengths)]
    moments = RunningMoments(*shape)
    for chunk in chunks:
        moments.update(chunk)
    whole = torch.cat(chunks).double()
    assert moments.count == len(whole)
    torch.testing.assert_close(moments.mean, whole.mean(0), rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(moments.variance, whole.var(0, correction=0), rtol=1e-4, atol=0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_an_update_that_is_not_finite_changes_nothing(value: float) -> None:
    moments = RunningMoments()
    moments.update(torch.tensor([1.0, 3.0]))
    moments.update(torch.tensor([2.0, value], dtype=torch.float64))
    assert (moments.count.item(), moments.mean.item(), moments.variance.item()) == (2, 2, 1)


# observations


@pytest.mark.parametrize(
    ("shape", "dtype", "stack", "shift"),
    [
        ((3,), "float32", 2, -1000.0),
        ((3,), "float64", 1, 1e9),
        ((1, 4, 5), "float64", 1, 1e9),
        ((2, 4, 5), "uint8", 1, 128.0),
        ((2, 4, 5), "uint8", 3, 128.0),
    ],
)
def test_each_element_has_its_own_mean_and_scale_and_pixels_share_one_scale(
    shape: tuple[int, ...], dtype: str, stack: int, shift: float
) -> None:
    """Numbers are centred before they lose digits; of an image, only the newest planes count."""
    rng, is_image = np.random.default_rng(2), len(shape) == 3
    scale = np.resize([0.1, 30.0, 2.0], shape)

    def looks(*lead: int) -> np.ndarray:
        looked: np.ndarray = (shift + scale * rng.normal(size=(*lead, *shape)).clip(-3, 3)).astype(dtype)
        return looked

    planes, obs = looks(6, 50), np.concatenate([looks(7) for _ in range(stack)], 1)
    normaliser = normaliser_of(shape, dtype, stack)
    given = torch.from_numpy(planes.copy())
    normaliser.observe(given)
    np.testing.assert_array_equal(given.numpy(), planes)  # are left as they were
    seen = (planes[-1] if is_image else planes.reshape(-1, *shape)).astype(np.float64)
    deviation = np.sqrt(seen.var(0).mean()) if is_image else np.tile(seen.std(0), stack)
    expected = (obs - np.tile(seen.mean(0), (stack, *[1] * (len(shape) - 1)))) / deviation
    for memory in (torch.contiguous_format, torch.channels_last) if is_image else (torch.contiguous_format,):
        found = normaliser(torch.from_numpy(obs).contiguous(memory_format=memory), torch.float32)
        assert found.dtype == torch.float32
        assert found.is_contiguous(memory_format=memory)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)


def test_vectors_are_clipped_at_ten_deviations() -> None:
    """And a constant element becomes 0."""
    normaliser = normaliser_of((3,))
    normaliser.observe(torch.tensor([[[-1.0, 0.0, 1000.1], [1.0, 4.0, 1000.1]]]))  # means 0, 2; deviations 1, 2, 0
    obs = torch.tensor([[9.9, 22.1, 1000.1], [-11.0, -17.8, 1000.6], [1e30, -1e30, 999.9]])
    expected = torch.tensor([[9.9, 10.0, 0.0], [-10.0, -9.9, 10.0], [10.0, -10.0, -10.0]])
    torch.testing.assert_close(normaliser(obs, torch.float32), expected)


@pytest.mark.parametrize("shape", [(20,), (1, 4, 5)])
def test_only_bytes_are_scaled_before_anything_was_seen(shape: tuple[int, ...]) -> None:
    numbers = random(1, *shape)
    torch.testing.assert_close(normaliser_of(shape)(numbers, torch.float32), numbers)
    normaliser = normaliser_of(shape, "uint8")
    obs = torch.arange(20, dtype=torch.uint8).mul(13).view(1, *shape)
    torch.testing.assert_close(normaliser(obs, torch.float32), obs / 255)
    both = torch.cat([obs, obs // 2 + 100])
    normaliser.observe(both.unsqueeze(0))
    found = normaliser(both, torch.float32)  # the start has left no trace
    torch.testing.assert_close(found.mean(0), torch.zeros(shape), rtol=0, atol=1e-5)
    torch.testing.assert_close(found.square().mean().sqrt(), torch.tensor(1.0), rtol=1e-5, atol=0)


# rewards


def test_rewards_are_divided_by_the_deviation_of_discounted_returns() -> None:
    rng = np.random.default_rng(3)
    scale, gamma = RewardScale(), 0.9
    carried: dict[tuple[str, int], float] = defaultdict(float)
    returns: list[float] = []
    for source in "abbaabbba":  # the unrolls of two actors as they come in
        reward = (rng.normal(1, 2, size=(5, 3)) * (3 if source == "b" else 1)).astype(np.float32)
        ended = rng.random((5, 3)) < 0.2
        begins = rng.random(3) < 0.2  # as after a reset that no end came before
        mask = rng.random((5, 3)) < 0.8
        given: list[Any] = [*map(torch.from_numpy, (reward, ended, mask, begins)), gamma, source]
        scale.observe(*given)
        for t, column in np.ndindex(5, 3):
            key = source, column
            carried[key] *= not (t == 0 and begins[column])
            carried[key] = gamma * carried[key] + float(reward[t, column])
            if mask[t, column]:
                returns.append(carried[key])
            carried[key] *= not ended[t, column]
        np.testing.assert_allclose(scale(given[0]).numpy(), reward / np.std(returns), rtol=1e-4)
    assert scale.moments.count == len(returns)


@pytest.mark.parametrize(("varies", "mean", "expected"), [(0.0, 0.0, 0.0), (0.0, 1.0, 10.0), (1e-3, 1.0, 10.0)])
def test_rewards_that_hardly_vary_are_not_blown_up(varies: float, mean: float, expected: float) -> None:
    """With a discount of 0 the returns of CartPole are its rewards, which are all 1: their deviation is no scale."""
    scale = RewardScale()
    reward = mean + varies * torch.linspace(-1, 1, 15).view(5, 3)
    nothing = torch.zeros(5, 3, dtype=torch.bool)
    scale.observe(reward, nothing, ~nothing, nothing[0], 0.0, "a")
    torch.testing.assert_close(scale(reward), expected * reward)


# what travels


def statistics(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if "moments" in name}


def test_actors_and_files_have_the_statistics_of_what_the_learner_has_seen(
    make_learner: MakeLearner, tmp_path: Path
) -> None:
    config = tiny_run(**NORMALISING)
    learner = make_learner(config)
    replies = feed(learner, speakers(learner)[0], config, 10, wants_weights=True)
    assert replies[-1].weights is not None
    sent = weights.unpack(replies[-1].weights)
    obs = np.concatenate([numbered_unroll(config, number).obs[-5:] for number in range(10)])
    assert sent["network.normaliser.moments.count"] == 10 * 5 * 4
    np.testing.assert_allclose(sent["network.normaliser.moments.mean"].numpy(), obs.mean((0, 1)), atol=1e-6)
    np.testing.assert_allclose(sent["network.normaliser.moments.variance"].numpy(), obs.var((0, 1)), rtol=1e-5)
    assert not any(name.startswith("rewards.") for name in sent)

    path = learner.finish().weights
    written, _ = weights.read(path)
    owners = ("network.normaliser", "average.normaliser", "rewards")
    names = {f"{owner}.moments.{name}" for owner in owners for name in ("count", "mean", "variance")}
    assert statistics(written).keys() == names
    assert written["rewards.moments.count"] == 10 * 5 * 4
    assert written["rewards.moments.variance"] != 1
    loaded: Any = load_policy(path).network
    network, inputs = learner._trainer.algorithm.network, random(5, 4)
    assert all(torch.equal(one, other) for one, other in zip(network(inputs), loaded(inputs), strict=True))
    loaded.normaliser.moments.mean += 1
    assert not torch.allclose(network(inputs).q_values, loaded(inputs).q_values)

    again, _ = weights.read(make_learner(tiny_run(load=path, **NORMALISING)).finish().weights)
    assert statistics(again).keys() == names
    assert all(torch.equal(tensor, again[name]) for name, tensor in statistics(written).items())


def test_weights_do_not_fit_a_network_that_differs_in_normalising(make_learner: MakeLearner) -> None:
    path = make_learner(tiny_run(network__normalise=True)).finish().weights
    message = config_error(lambda: make_learner(tiny_run(load=path)))
    assert message == f"{path}: network.normalise is True, this run's is False"
