"""An `ApexDqn` with a target network of its own, and windows to learn from."""

from __future__ import annotations

import dataclasses

import torch

from apex_acer.algorithms.dqn.apex_dqn import ApexDqn
from apex_acer.algorithms.dqn.settings import ApexDqnConfig
from apex_acer.config import ActorsConfig, NetworkConfig, ReplayConfig, RunConfig
from apex_acer.protocol.actions import Discrete
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import Batch
from tests.algorithms.segments import CPU, PLANE
from tests.functional import reference
from tests.functional.reference import Sizes

STEPS, COLUMNS, ACTIONS = 3, 48, 5


def dqn_config(*, hidden=16, lstm=0, sampling="prioritized", actors=1, **settings):
    """A run of Ape-X DQN with these settings of the algorithm."""
    given = {"unroll_length": 8, "n_steps": STEPS, "gamma": 0.9} | settings
    return RunConfig(
        actors=ActorsConfig(count=actors),
        network=NetworkConfig(hidden_sizes=(hidden,), lstm=lstm),
        replay=ReplayConfig(sampling=sampling),
        algorithm=ApexDqnConfig(**given),
    )


def spec(stack=1):
    """What the algorithm is told of an environment of vectors."""
    return EnvironmentSpec((PLANE,), "float32", Discrete(ACTIONS, 0), stack, False, 1, (PLANE,))


def randomise(network, seed, std=0.4):
    """Weights with which values differ from state to state."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=std, generator=generator)


def build_dqn(seed=0, stack=1, dtype=torch.float64, **config):
    """An `ApexDqn` as after some training; its networks differ."""
    algorithm = ApexDqn.make(dqn_config(**config), spec(stack), CPU)
    for number, network in enumerate((algorithm.network, algorithm.target_network)):
        randomise(network.to(dtype), 2 * seed + number)
    return algorithm


def random_windows(seed=0, stack=1, steps=STEPS, dtype=torch.float64):
    """A batch for `build_dqn` with every kind of ending, some first steps masked, and weights of its own for each."""
    arrays = reference.random_batch(seed, Sizes(steps, COLUMNS, ACTIONS))
    generator = torch.Generator().manual_seed(seed)
    planes = steps + stack
    given = {name: torch.from_numpy(arrays[name]) for name in ("action", "terminated", "truncated", "mask")}
    batch = Batch(
        **given,
        reward=2 * torch.from_numpy(arrays["reward"]).to(dtype),
        obs=torch.randn(planes, COLUMNS, PLANE, generator=generator, dtype=dtype),
        episode_step=torch.randint(0, 4, (planes, COLUMNS), generator=generator, dtype=torch.int32),
        extras={},
        state={},
        weights_version=torch.zeros(COLUMNS, dtype=torch.int64),
        fresh=torch.zeros(COLUMNS, dtype=torch.bool),
        importance=torch.rand(COLUMNS, generator=generator, dtype=dtype),
    )
    assert 0 < batch.mask[0].sum() < COLUMNS
    return batch


def as_arrays(batch):
    """What the reference takes of it."""
    fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return {name: value.numpy() for name, value in fields.items() if isinstance(value, torch.Tensor)}
