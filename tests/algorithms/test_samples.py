"""Samples are what papers are written in: stacks, n-step sums, shaped rewards, and 0 where nothing follows."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from apex_acer.algorithms.on_policy.common import minibatches
from apex_acer.algorithms.samples import (
    SampleMaker,
    Samples,
    Sequences,
    flat,
    prepared,
    split,
    with_prepared,
    without_last,
)
from apex_acer.config import AlgorithmConfig, SequenceConfig
from apex_acer.networks.discrete import ActorCritic
from apex_acer.protocol.unroll import Batch
from tests.algorithms.learning import batch_of
from tests.functional import reference_q
from tests.runs import CARTPOLE, made_up_unroll, tiny_run

T, B, PLANE, N = 7, 5, 3, 3
STACKS = pytest.mark.parametrize("stack", [1, 4])
SHAPING: dict[str, Any] = {"gamma": 0.9, "reward_clip": 20.0, "terminal_penalty": 0.5, "unroll_length": T}


def numbered_batch(stack: int = 1) -> Batch:
    """No two of its numbers are alike; some steps are dummies, after which an episode begins."""
    random = np.random.default_rng(stack)
    clock = iter(range(10**6))

    def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.tensor([next(clock) for _ in range(int(np.prod(shape)))], dtype=dtype).view(shape)

    return batch_of(
        numbers(T + stack, B, PLANE),
        numbers(T, B, dtype=torch.int64),
        episode_step=torch.from_numpy(random.integers(0, 4, (T + stack, B), np.int32)),
        reward=numbers(T, B) / 5,
        terminated=torch.from_numpy(random.random((T, B)) < 0.3),
        truncated=torch.from_numpy(random.random((T, B)) < 0.3),
        mask=torch.from_numpy(random.random((T, B)) < 0.8),
        extras={"log_probs": numbers(T, B, 2)},
        state={"hidden": numbers(B, 6)},
        fresh=torch.from_numpy(random.random(B) < 0.5),
        importance=numbers(B),
    )


def sequences(stack: int = 1) -> Sequences:
    made = SampleMaker(AlgorithmConfig(name="a", **SHAPING)).make(numbered_batch(stack))
    assert isinstance(made, Sequences)
    noise, advantage = torch.randn(2, B, 4), torch.randn(T, B)
    return dataclasses.replace(made, noise={"x": noise}, targets={"advantage": advantage, "pair": torch.randn(T, B, 2)})


def shaped(reward: float, terminated: bool) -> Any:
    return reference_q.shape_reward(reward, terminated, SHAPING["reward_clip"], SHAPING["terminal_penalty"])


def stacked(batch: Batch, row: int, column: int) -> torch.Tensor:
    """The frame stack at a step, one plane at a time."""
    stack, planes = batch.stack, []
    age = int(batch.episode_step[row + stack - 1, column])
    for back in reversed(range(stack)):
        plane = batch.obs[row + stack - 1 - back, column]
        planes.append(plane if back <= age else torch.zeros_like(plane))
    return torch.cat(planes)


@STACKS
def test_sequences_have_stacks_shaped_rewards_and_discounts(stack: int) -> None:
    batch, made = numbered_batch(stack), sequences(stack)
    for b in range(B):
        for t in range(T + 1):
            assert torch.equal(made.obs[t, b], stacked(batch, t, b))
            assert made.first[t, b] == (batch.episode_step[t + stack - 1, b] == 0)
        for t in range(T):
            ended = bool(batch.terminated[t, b])
            assert made.reward[t, b].item() == pytest.approx(shaped(batch.reward[t, b].item(), ended))
            assert made.discount[t, b].item() == pytest.approx(0.0 if ended else 0.9)
            assert made.last[t, b] == (ended or bool(batch.truncated[t, b]))
    assert torch.equal(made.terminated, batch.terminated)
    for name in ("action", "mask", "importance", "fresh"):
        assert torch.equal(getattr(made, name), getattr(batch, name)), name
    torch.testing.assert_close((made.state, made.extras), (batch.state, batch.extras))


def test_rewards_are_scaled_by_the_returns_observed_so_far() -> None:
    """By the deviation of the discounted returns of clipped and penalised rewards, cut at every end."""
    maker = SampleMaker(SequenceConfig(name="a", **SHAPING, normalise_rewards=True))
    run, carried, returns = tiny_run(), np.zeros((2, 4)), []
    for number in range(6):
        random, source = np.random.default_rng(number), number % 2
        reward = random.normal(5, 20, (5, 4)).astype(np.float32)
        truncated, mask = random.random((5, 4)) < 0.2, random.random((5, 4)) < 0.9
        unroll = made_up_unroll(run, number, reward=reward, truncated=truncated, mask=mask)
        unroll.episode_step[:] += source  # so only those of the first source begin an episode
        maker.observe(unroll, source, 1, torch.device("cpu"))
        carried[source] *= unroll.episode_step[0, 0] > 0
        for t, column in np.ndindex(5, 4):
            paid = shaped(reward[t, column].item(), unroll.terminated[t, column].item())
            carried[source, column] = 0.9 * carried[source, column] + paid
            if mask[t, column]:
                returns.append(carried[source, column])
            if unroll.terminated[t, column] or truncated[t, column]:
                carried[source, column] = 0.0
    made: Any = maker.make(numbered_batch())
    torch.testing.assert_close(made.reward, sequences().reward / np.std(returns), rtol=1e-4, atol=0)


def of_steps(samples: Samples, name: str) -> dict[str, torch.Tensor]:
    """The tensors of a field, by name."""
    value: Any = getattr(samples, name)
    return value if isinstance(value, dict) else {name: value}


@STACKS
def test_single_steps_are_the_steps_one_by_one(stack: int) -> None:
    whole = sequences(stack)
    index = torch.randperm(T * B)[:20]
    alone = whole.steps(index)
    assert alone.mask.shape == (1, 20)
    assert alone.state == alone.noise == {}
    for place, number in enumerate(index.tolist()):
        t, b = divmod(number, B)
        for name in ("obs", "first"):
            assert torch.equal(getattr(alone, name)[:, place], getattr(whole, name)[t : t + 2, b]), name
        for name in ("action", "reward", "discount", "last", "mask", "extras", "targets"):
            for key, tensor in of_steps(alone, name).items():
                assert torch.equal(tensor[0, place], of_steps(whole, name)[key][t, b]), key
        for name in ("fresh", "importance"):
            assert torch.equal(getattr(alone, name)[place], getattr(whole, name)[b]), name
    assert whole.steps(torch.arange(0)).mask.shape == (1, 0)
    assert torch.equal(without_last(whole).steps(index).obs, alone.obs[:1])


@pytest.mark.parametrize("num_parts", [1, 3, 9])
def test_selecting_and_splitting_keep_sequences_whole(num_parts: int) -> None:
    whole, index = sequences(3), torch.tensor([4, 0, 2])
    parts, chosen = split(whole, num_parts), whole.select(index)
    assert len(parts) <= num_parts
    for field in dataclasses.fields(Sequences):
        axis = whole.axis(field.name)
        for key, tensor in of_steps(whole, field.name).items():
            assert torch.equal(torch.cat([of_steps(part, field.name)[key] for part in parts], axis), tensor), key
            assert torch.equal(of_steps(chosen, field.name)[key], tensor.index_select(axis, index)), key


def test_a_part_of_images_keeps_its_channels_innermost() -> None:
    """With which convolutions on a CPU are fastest; to flatten alone would move them."""
    spec = dataclasses.replace(CARTPOLE, plane_shape=(1, 36, 36), given_shape=(36, 36), dtype="uint8", stack=4)
    network = ActorCritic(tiny_run().network, spec)
    frames = torch.randint(0, 255, (T + 4, B, 1, 36, 36), dtype=torch.uint8)
    batch = dataclasses.replace(numbered_batch(4), obs=frames)
    made: Any = SampleMaker(AlgorithmConfig(name="a", **SHAPING)).make(batch)
    for part in split(made, 2):
        inputs = prepared(network, part.obs)
        assert inputs.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(inputs, network.prepare(part.obs.flatten(0, 1)))
    for part in (*split(with_prepared(network, made), 2), with_prepared(network, made).steps(torch.arange(T * B))):
        assert flat(part.obs).is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(flat(with_prepared(network, made).obs), prepared(network, made.obs))


@pytest.mark.parametrize("lstm", [False, True])
def test_minibatches_hold_every_step_once_and_no_dummy(lstm: bool) -> None:
    samples = sequences() if lstm else dataclasses.replace(sequences(), state={})
    orders = []
    for _ in range(2):
        parts = list(minibatches(samples, 2))
        taken = torch.cat([part.reward[part.mask] for part in parts])
        assert sorted(taken.tolist()) == sorted(samples.reward[samples.mask].tolist())
        assert lstm or all(part.mask.all() for part in parts)
        sizes = [part.mask.numel() for part in parts]
        assert max(sizes) - min(sizes) <= (T if lstm else 1)
        orders.append(taken.tolist())
    assert orders[0] != orders[1]
