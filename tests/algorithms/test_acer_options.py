"""What sweeps may switch on: penalties and normalisation."""

import dataclasses
from collections import defaultdict

import numpy as np
import pytest
import torch

from tests.algorithms.learning import loss_of
from tests.algorithms.segments import build, flat, gradients_of, random_segments
from tests.runs import made_up_unroll, tiny_run


def assert_same_loss(one, other):
    """Equal losses and gradients; each an `Acer` and a batch."""
    (loss, gradients), (expected, expected_gradients) = gradients_of(*one), gradients_of(*other)
    assert loss.loss.item() == pytest.approx(expected.loss.item(), rel=1e-9)
    torch.testing.assert_close(flat(gradients), flat(expected_gradients), rtol=1e-6, atol=1e-9)


def total_of(acer, batch):
    return loss_of(acer, batch).loss.item()


# rewards


def test_a_penalty_is_taken_off_where_a_step_terminates_after_clipping():
    batch, arrays = random_segments(0)
    batch = dataclasses.replace(batch, reward=10 * batch.reward)
    expected = np.clip(10 * arrays["reward"], -1, 1) - 0.75 * arrays["terminated"]
    assert (arrays["truncated"] & ~arrays["terminated"]).any()
    assert arrays["terminated"].any()
    penalised = dataclasses.replace(batch, reward=torch.from_numpy(expected))
    assert_same_loss((build(reward_clip=1.0, terminal_penalty=0.75), batch), (build(), penalised))
    assert total_of(build(reward_clip=1.0), batch) != pytest.approx(total_of(build(), penalised), rel=1e-3)


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
    assert total_of(acer, batch) == pytest.approx(total_of(build(1), expected), rel=1e-4)
    assert total_of(build(1, **settings), batch) != pytest.approx(total_of(acer, batch), rel=1e-2)


def test_a_dummy_step_is_no_return():
    """Episodes of one step with rewards 3 and 5: the deviation of returns is 1, whatever the resets between them."""
    reward, mask = np.zeros((5, 4), np.float32), np.zeros((5, 4), bool)
    reward[::2], mask[::2] = [3, 5, 3, 5], True
    acer = build(1, normalise_rewards=True)
    acer.observe(made_up_unroll(tiny_run(), reward=reward, terminated=mask, mask=mask), "a")
    batch, _ = random_segments(1)
    assert total_of(acer, batch) == pytest.approx(total_of(build(1), batch), rel=1e-5)


# observations


def test_both_networks_see_observations_by_the_newest_statistics():
    acer = build(2, stack=1, normalise=True)
    acer.average_network.load_state_dict(acer.network.state_dict())
    acer.observe(made_up_unroll(tiny_run(), obs=np.full((6, 4, 4), 3, np.float32)), "a")
    before = acer.average_network.normaliser.moments.mean.clone()
    batch, _ = random_segments(2, stack=1)
    assert loss_of(acer, batch).metrics["average_policy_kl"].item() == pytest.approx(0, abs=1e-12)
    assert torch.equal(acer.average_network.normaliser.moments.mean, before)
    acer.after_step(0, acer.groups())
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
