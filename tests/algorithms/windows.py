"""`ApexDqn`, `Sac` and `Ddpg` as after some training, and windows of steps to learn from."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy.typing as npt
import torch

from apex_acer.protocol.actions import Actions, Box, Discrete
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import Batch
from tests.algorithms.learning import PLANE, NoisyBatch, batch_of, made
from tests.functional import reference
from tests.functional.reference import Sizes

STEPS, COLUMNS, ACTIONS, STACK = 3, 48, 5, 2
DIM = 2  # of continuous actions
DISCRETE, BOX = Discrete(ACTIONS, 0), Box((-1.0,) * DIM, (1.0,) * DIM, (DIM,), "float32")


IMAGES = EnvironmentSpec((1, 7, 7), "float32", BOX, STACK, False, 1, (7, 7))
"""Images that convolutions suit, with continuous actions."""


def spec(stack: int = 1, actions: Actions = DISCRETE) -> EnvironmentSpec:
    """What the algorithm is told of an environment of vectors."""
    return EnvironmentSpec((PLANE,), "float32", actions, stack, False, 1, (PLANE,))


def build(name: str, seed: int = 0, *, images: bool = False, **changes: Any) -> Any:
    """`apex_dqn`, `ddpg` or `sac` as after some training."""
    return made(name, IMAGES if images else spec_for(name), seed, **{"n_steps": STEPS} | changes)


def spec_for(name: str) -> EnvironmentSpec:
    return spec(STACK, DISCRETE if name == "apex_dqn" else BOX)


def random_windows(algorithm: Any, seed: int = 0) -> NoisyBatch:
    """A batch with every kind of ending, some first steps masked, a weight for each window, and noise for the loss."""
    steps = algorithm.settings.n_steps
    arrays = reference.random_batch(seed, Sizes(steps, COLUMNS, ACTIONS))
    generator = torch.Generator().manual_seed(seed)
    planes = steps + STACK
    given = {name: torch.from_numpy(arrays[name]) for name in ("action", "terminated", "truncated", "mask")}
    if algorithm.settings.actions == "Box":
        given["action"] = 2 * torch.rand(steps, COLUMNS, DIM, generator=generator, dtype=torch.float64) - 1
    batch = batch_of(
        torch.randn(planes, COLUMNS, *algorithm.agent.spec.plane_shape, generator=generator, dtype=torch.float64),
        **given,
        reward=2 * torch.from_numpy(arrays["reward"]),
        episode_step=torch.randint(0, 4, (planes, COLUMNS), generator=generator, dtype=torch.int32),
        importance=torch.rand(COLUMNS, generator=generator, dtype=torch.float64),
    )
    assert 0 < batch.mask[0].sum() < COLUMNS
    torch.manual_seed(seed)
    drawn = algorithm.noise(algorithm.samples.make(batch))
    noise = {name: part.double() if part.is_floating_point() else part for name, part in drawn.items()}
    return dataclasses.replace(batch, noise=noise)


def as_arrays(batch: Batch) -> dict[str, npt.NDArray[Any]]:
    """What the reference takes of it."""
    fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return {name: value.numpy() for name, value in fields.items() if isinstance(value, torch.Tensor)}
