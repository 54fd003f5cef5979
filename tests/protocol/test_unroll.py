"""Parts of batches against reading them step by step."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from apex_acer.algorithms import algorithm_class
from apex_acer.algorithms.on_policy.common import OnPolicy
from apex_acer.networks.frames import stack_planes
from apex_acer.protocol.unroll import ARRAY_FIELDS, Batch, columns, single_steps
from tests.runs import CARTPOLE, made_up_unroll, tiny_run

T, B, PLANE = 7, 5, 3
STACKS = pytest.mark.parametrize("stack", [1, 4])


def numbered_batch(stack: int = 1) -> Batch:
    """No two of its numbers are alike; some steps are dummies, after which an episode begins."""
    random = np.random.default_rng(stack)
    clock = iter(range(10**6))

    def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.tensor([next(clock) for _ in range(int(np.prod(shape)))], dtype=dtype).view(shape)

    mask = torch.from_numpy(random.random((T, B)) < 0.8)
    return Batch(
        obs=numbers(T + stack, B, PLANE),
        episode_step=torch.from_numpy(random.integers(0, 4, (T + stack, B), np.int32)),
        action=numbers(T, B, dtype=torch.int64),
        reward=numbers(T, B),
        terminated=torch.from_numpy(random.random((T, B)) < 0.3),
        truncated=torch.from_numpy(random.random((T, B)) < 0.3),
        mask=mask,
        behaviour={"log_probs": numbers(T, B, 2)},
        state={"hidden": numbers(B, 6)},
        weights_version=numbers(B, dtype=torch.int64),
        fresh=torch.from_numpy(random.random(B) < 0.5),
        importance=numbers(B),
        noise={"actions": numbers(T, B, 2)},
        targets={"advantage": numbers(T, B), "pair": numbers(T, B, 2)},
    )


def of_steps(batch: Batch, name: str) -> dict[str, torch.Tensor]:
    """The tensors `[T, B, …]` of a field, by name."""
    value: Any = getattr(batch, name)
    return value if isinstance(value, dict) else {name: value}


@STACKS
def test_single_steps_are_the_steps_one_by_one(stack: int) -> None:
    batch = numbered_batch(stack)
    index = torch.randperm(T * B)[:20]
    found = single_steps(batch, index)
    assert (found.stack, found.mask.shape) == (stack, (1, 20))
    assert found.state == found.noise == {}
    for place, number in enumerate(index.tolist()):
        t, b = divmod(number, B)
        for name in ("obs", "episode_step"):
            assert torch.equal(getattr(found, name)[:, place], getattr(batch, name)[t : t + stack + 1, b]), name
        for name in (*ARRAY_FIELDS[2:], "behaviour", "targets"):
            for key, tensor in of_steps(found, name).items():
                assert torch.equal(tensor[0, place], of_steps(batch, name)[key][t, b]), key
        for name in ("weights_version", "fresh", "importance"):
            assert torch.equal(getattr(found, name)[place], getattr(batch, name)[b]), name


@STACKS
def test_a_network_sees_the_same_in_a_single_step(stack: int) -> None:
    """Stacks are those of the whole segment, cut at the starts of episodes."""
    batch = numbered_batch(stack)
    index = torch.arange(T * B)
    found = single_steps(batch, index)
    whole = stack_planes(batch.obs, batch.episode_step, stack)
    alone = stack_planes(found.obs, found.episode_step, stack)
    assert torch.equal(alone[0], whole[:-1].flatten(0, 1))
    assert torch.equal(alone[1], whole[1:].flatten(0, 1))


def test_columns_are_whole_segments() -> None:
    batch, index = numbered_batch(3), torch.tensor([4, 0, 2])
    found = columns(batch, index)
    for field in dataclasses.fields(Batch):
        for key, tensor in of_steps(found, field.name).items():
            given = of_steps(batch, field.name)[key]
            by_segment = field.name in ("state", "weights_version", "fresh", "importance")
            assert torch.equal(tensor, given[index] if by_segment else given[:, index]), key
    assert found.stack == 3


def test_nothing_of_nothing() -> None:
    assert single_steps(numbered_batch(), torch.arange(0)).mask.shape == (1, 0)


@pytest.mark.parametrize("lstm", [0, 4])
def test_minibatches_hold_every_step_once_and_no_dummy(lstm: int) -> None:
    config = tiny_run(algorithm__name="ppo", algorithm__minibatches=2, network__lstm=lstm)
    algorithm = algorithm_class("ppo")(config, CARTPOLE, torch.device("cpu"))
    assert isinstance(algorithm, OnPolicy)
    batch = numbered_batch()
    orders = []
    for _ in range(2):
        parts = list(algorithm.minibatches(batch, 2))
        taken = torch.cat([part.reward[part.mask] for part in parts])
        assert sorted(taken.tolist()) == sorted(batch.reward[batch.mask].tolist())
        assert lstm or all(part.mask.all() for part in parts)
        sizes = [part.mask.numel() for part in parts]
        assert max(sizes) - min(sizes) <= (T if lstm else 1)
        orders.append(taken.tolist())
    assert orders[0] != orders[1]


@pytest.mark.parametrize("name", ["reward", "obs"])
def test_absurd_numbers_are_refused(name: str) -> None:
    run = tiny_run()
    array = getattr(made_up_unroll(run), name).copy()
    array.flat[-1] = 1e15
    assert not made_up_unroll(run, **{name: array}).refusal(CARTPOLE)
    array.flat[-1] = -1e20
    refusal = f"{name}: up to 1e+20, allowed is a magnitude of 1e+15"
    assert made_up_unroll(run, **{name: array}).refusal(CARTPOLE) == refusal
