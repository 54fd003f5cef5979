"""What sweeps may switch on: penalties, normalisation, an adaptive trust region."""

import dataclasses
from collections import defaultdict

import numpy as np
import pytest
import torch

from apex_acer.algorithms.acer import DELTA_RANGE, DELTA_STEP
from apex_acer.config import ConfigError
from apex_acer.networks.weights import pack, unpack
from tests.algorithms.segments import build, flat, gradients_of, random_segments
from tests.runs import made_up_unroll, tiny_run


def assert_same_loss(one, other):
    """Equal losses and gradients; each an `Acer` and a batch."""
    (loss, gradients), (expected, expected_gradients) = gradients_of(*one), gradients_of(*other)
    assert loss.loss.item() == pytest.approx(expected.loss.item(), rel=1e-9)
    torch.testing.assert_close(flat(gradients), flat(expected_gradients), rtol=1e-6, atol=1e-9)


def loss_of(acer, batch):
    return acer.loss(batch).loss.item()


# rewards


def test_a_penalty_is_taken_off_where_a_step_terminates_after_clipping():
    batch, arrays = random_segments(0)
    batch = dataclasses.replace(batch, reward=10 * batch.reward)
    expected = np.clip(10 * arrays["reward"], -1, 1) - 0.75 * arrays["terminated"]
    assert (arrays["truncated"] & ~arrays["terminated"]).any()
    assert arrays["terminated"].any()
    penalised = dataclasses.replace(batch, reward=torch.from_numpy(expected))
    assert_same_loss((build(reward_clip=1.0, terminal_penalty=0.75), batch), (build(), penalised))
    assert loss_of(build(reward_clip=1.0), batch) != pytest.approx(loss_of(build(), penalised), rel=1e-3)


def made_up_unrolls(count):
    """Unrolls with every kind of end, and rewards beyond a clip of 1."""
    for seed in range(count):
        random = np.random.default_rng(seed)
        reward = random.normal(1, 2, (5, 4)).astype(np.float32)
        yield made_up_unroll(tiny_run(), seed, reward=reward, truncated=random.random((5, 4)) < 0.2)


def test_rewards_are_scaled_as_they_are_learned():
    """By the deviation of the discounted returns of clipped and penalised rewards, cut at every end."""
    settings = {"reward_clip": 1.0, "terminal_penalty": 0.5}
    acer, gamma = build(1, normalise_rewards=True, **settings), 0.9
    carried, returns = defaultdict(float), []
    for number, unroll in enumerate(made_up_unrolls(6)):
        acer.observe(unroll, number % 2)
        reward = unroll.reward.clip(-1, 1) - 0.5 * unroll.terminated
        for t, column in np.ndindex(5, 4):
            key = number % 2, column
            carried[key] = gamma * carried[key] + reward[t, column]
            returns.append(carried[key])
            if unroll.terminated[t, column] or unroll.truncated[t, column]:
                carried[key] = 0.0
    batch, arrays = random_segments(1)
    shaped = np.clip(arrays["reward"], -1, 1) - 0.5 * arrays["terminated"]
    expected = dataclasses.replace(batch, reward=torch.from_numpy(shaped / np.std(returns)))
    assert loss_of(acer, batch) == pytest.approx(loss_of(build(1), expected), rel=1e-4)
    assert loss_of(build(1, **settings), batch) != pytest.approx(loss_of(acer, batch), rel=1e-2)


def test_a_dummy_step_is_no_return():
    """Episodes of one step with rewards 3 and 5: the deviation of returns is 1, whatever the resets between them."""
    reward, mask = np.zeros((5, 4), np.float32), np.zeros((5, 4), bool)
    reward[::2], mask[::2] = [3, 5, 3, 5], True
    acer = build(1, normalise_rewards=True)
    acer.observe(made_up_unroll(tiny_run(), reward=reward, terminated=mask, mask=mask), "a")
    batch, _ = random_segments(1)
    assert loss_of(acer, batch) == pytest.approx(loss_of(build(1), batch), rel=1e-5)


# observations


def test_both_networks_see_observations_by_the_newest_statistics():
    acer = build(2, stack=1, normalise=True)
    acer.average_network.load_state_dict(acer.network.state_dict())
    acer.observe(made_up_unroll(tiny_run(), obs=np.full((6, 4, 4), 3, np.float32)), "a")
    before = acer.average_network.normaliser.moments.mean.clone()
    batch, _ = random_segments(2, stack=1)
    assert acer.loss(batch).metrics["average_policy_kl"].item() == pytest.approx(0, abs=1e-12)
    assert torch.equal(acer.average_network.normaliser.moments.mean, before)
    acer.after_step({})
    for name, buffer in acer.network.normaliser.moments.named_buffers():
        assert torch.equal(getattr(acer.average_network.normaliser.moments, name), buffer)
    assert acer.average_network.normaliser.moments.mean.tolist() == [3, 3, 3, 3]


def test_an_unroll_s_lead_in_is_not_observed_again():
    acer = build(2, stack=2, normalise=True)
    obs = np.random.default_rng(2).normal(size=(7, 4, 4)).astype(np.float32)  # two planes before the first step's
    acer.observe(made_up_unroll(tiny_run(), obs=obs), "a")
    moments = acer.network.normaliser.moments
    assert moments.count == 5 * 4
    np.testing.assert_allclose(moments.mean.numpy(), obs[2:].mean((0, 1)), rtol=1e-5)


# the trust region


def step_once(acer, batch):
    metrics = acer.loss(batch).metrics
    acer.after_step(metrics)
    return metrics["average_policy_kl"].item()


def test_delta_falls_above_the_target_and_rises_below():
    batch, _ = random_segments(4)
    kl = build(4).loss(batch).metrics["average_policy_kl"].item()
    assert kl > 0
    for target, factor in ((0.9 * kl, 1 / DELTA_STEP), (1.1 * kl, DELTA_STEP)):
        acer = build(4, trust_region_delta=0.5, trust_region_kl=target, ema_decay=1.0)
        for updates in range(3):
            loss = acer.loss(batch)
            assert loss.metrics["trust_region_delta"].item() == pytest.approx(0.5 * factor**updates)
            acer.after_step(loss.metrics)
    constant = build(4, trust_region_delta=0.5)
    for _ in range(3):
        step_once(constant, batch)
    assert constant.loss(batch).metrics["trust_region_delta"] == 0.5


def test_delta_is_what_the_loss_is_bound_by():
    batch, _ = random_segments(5)
    acer = build(5, trust_region_delta=0.5, trust_region_kl=1e-6, ema_decay=1.0)
    for _ in range(60):
        step_once(acer, batch)
    assert_same_loss((acer, batch), (build(5, trust_region_delta=0.5 / DELTA_STEP**60), batch))
    with pytest.raises(AssertionError):
        assert_same_loss((acer, batch), (build(5, trust_region_delta=0.5), batch))


@pytest.mark.parametrize(("target", "start", "bound"), [(1e-6, 1.1e-3, DELTA_RANGE[0]), (1e6, 900.0, DELTA_RANGE[1])])
def test_delta_is_bounded(target, start, bound):
    batch, _ = random_segments(6)
    acer = build(6, trust_region_delta=start, trust_region_kl=target, ema_decay=1.0)
    for _ in range(10):
        step_once(acer, batch)
    assert acer.loss(batch).metrics["trust_region_delta"].item() == pytest.approx(bound)


def test_delta_comes_back_from_a_file_where_it_adapts():
    batch, _ = random_segments(8)
    saved = build(8, trust_region_kl=1e-6)
    for _ in range(5):
        step_once(saved, batch)
    file = unpack(pack(saved.tensors(), {}))
    adapting, constant = build(9, trust_region_kl=1e-6), build(9, trust_region_delta=0.25)
    adapting.load(file)
    constant.load(file)
    assert adapting.loss(batch).metrics["trust_region_delta"].item() == pytest.approx(DELTA_STEP**-5)
    assert constant.loss(batch).metrics["trust_region_delta"] == 0.25
    step_once(adapting, batch)
    assert adapting.loss(batch).metrics["trust_region_delta"].item() == pytest.approx(DELTA_STEP**-6)


def test_a_delta_of_another_shape_is_refused_by_name():
    acer = build(10, trust_region_kl=0.1)
    with pytest.raises(ConfigError, match=r"trust_region\.delta"):
        acer.load(acer.tensors() | {"trust_region.delta": torch.ones(3)})
