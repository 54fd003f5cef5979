"""`ApexDqn`, `Sac` and `Ddpg` as after some training, and windows of steps to learn from."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy.typing as npt
import torch

from apex_acer.algorithms.algorithm import Algorithm
from apex_acer.algorithms.ddpg.ddpg import Ddpg
from apex_acer.algorithms.ddpg.settings import DdpgConfig
from apex_acer.algorithms.dqn.apex_dqn import ApexDqn
from apex_acer.algorithms.dqn.settings import ApexDqnConfig
from apex_acer.algorithms.sac.sac import Sac
from apex_acer.algorithms.sac.settings import SacConfig
from apex_acer.config import ActorsConfig, NetworkConfig, ReplayConfig, RunConfig
from apex_acer.protocol.actions import Actions, Box, Discrete
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import Batch
from tests.algorithms.learning import PLANE, Kind, NoisyBatch, batch_of, made
from tests.functional import reference
from tests.functional.reference import Sizes

STEPS, COLUMNS, ACTIONS, STACK = 3, 48, 5, 2
DIM = 2  # of continuous actions
DISCRETE, BOX = Discrete(ACTIONS, 0), Box((-1.0,) * DIM, (1.0,) * DIM, (DIM,), "float32")
NETWORK = NetworkConfig(hidden_sizes=(16, 8))
SETTINGS: dict[type[Algorithm], Any] = {ApexDqn: ApexDqnConfig, Sac: SacConfig, Ddpg: DdpgConfig}


def spec(stack: int = 1, actions: Actions = DISCRETE) -> EnvironmentSpec:
    """What the algorithm is told of an environment of vectors."""
    return EnvironmentSpec((PLANE,), "float32", actions, stack, False, 1, (PLANE,))


def spec_for(kind: type[Algorithm]) -> EnvironmentSpec:
    return spec(STACK, DISCRETE if kind is ApexDqn else BOX)


def config_of(
    kind: type[Algorithm],
    *,
    network: NetworkConfig = NETWORK,
    sampling: Any = "uniform",
    actors: int = 1,
    **settings: Any,
) -> RunConfig:
    """A run of the algorithm `kind` with these settings of it."""
    return RunConfig(
        network=network,
        actors=ActorsConfig(count=actors),
        replay=ReplayConfig(sampling=sampling),
        algorithm=SETTINGS[kind](**{"unroll_length": 8, "n_steps": STEPS, "gamma": 0.9} | settings),
    )


def build(kind: type[Kind], seed: int = 0, dtype: torch.dtype = torch.float64, **given: Any) -> Kind:
    """The algorithm as after some training."""
    return made(kind, config_of(kind, **given), spec_for(kind), seed, dtype)


def random_windows(algorithm: Any, seed: int = 0) -> NoisyBatch:
    """A batch with every kind of ending, some first steps masked, a weight for each window, and noise for the loss."""
    steps = algorithm.settings.n_steps
    arrays = reference.random_batch(seed, Sizes(steps, COLUMNS, ACTIONS))
    generator = torch.Generator().manual_seed(seed)
    planes = steps + STACK
    given = {name: torch.from_numpy(arrays[name]) for name in ("action", "terminated", "truncated", "mask")}
    if not isinstance(algorithm, ApexDqn):
        given["action"] = 2 * torch.rand(steps, COLUMNS, DIM, generator=generator, dtype=torch.float64) - 1
    batch = batch_of(
        torch.randn(planes, COLUMNS, PLANE, generator=generator, dtype=torch.float64),
        **given,
        reward=2 * torch.from_numpy(arrays["reward"]),
        episode_step=torch.randint(0, 4, (planes, COLUMNS), generator=generator, dtype=torch.int32),
        importance=torch.rand(COLUMNS, generator=generator, dtype=torch.float64),
    )
    assert 0 < batch.mask[0].sum() < COLUMNS
    torch.manual_seed(seed)
    noise = {name: part.double() for name, part in algorithm.noise(algorithm.samples.make(batch)).items()}
    return dataclasses.replace(batch, noise=noise)


def as_arrays(batch: Batch) -> dict[str, npt.NDArray[Any]]:
    """What the reference takes of it."""
    fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return {name: value.numpy() for name, value in fields.items() if isinstance(value, torch.Tensor)}
