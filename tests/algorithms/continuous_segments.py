"""A `ContinuousAcer` with an average network of its own, and segments to learn from."""

from __future__ import annotations

import torch

from apex_acer.algorithms.acer.continuous import ContinuousAcer
from apex_acer.algorithms.acer.settings import ContinuousAcerConfig
from apex_acer.config import LearnerConfig, NetworkConfig, RunConfig
from apex_acer.protocol.actions import Box
from apex_acer.protocol.specification import EnvironmentSpec
from tests.algorithms.learning import NoisyBatch
from tests.algorithms.segments import CPU, PLANE, random_state
from tests.functional import reference_continuous
from tests.functional.reference import Sizes

SIZES = Sizes(8, 5, 3)


def config_of(hidden=16, lstm=0, normalise=False, learner=None, **settings):
    """A run's configuration with these settings of the algorithm."""
    return RunConfig(
        network=NetworkConfig(hidden_sizes=(hidden,), lstm=lstm, normalise=normalise),
        learner=learner or LearnerConfig(),
        algorithm=ContinuousAcerConfig(**{"unroll_length": SIZES.length, "gamma": 0.9, "std": 0.6} | settings),
    )


def spec_of(stack=2):
    """Vectors of `PLANE` numbers, and actions of three."""
    actions = Box((-2.0,) * SIZES.actions, (3.0,) * SIZES.actions, (SIZES.actions,), "float32")
    return EnvironmentSpec((PLANE,), "float32", actions, stack, False, 1, (PLANE,))


def build(seed=0, stack=2, dtype=torch.float64, **settings):
    """A `ContinuousAcer` with an average network of its own, as after some training."""
    torch.manual_seed(seed)
    acer = ContinuousAcer.make(config_of(**settings), spec_of(stack), CPU)
    for network in (acer.network, acer.average_network):
        network.to(dtype)
        for head in (network.mean, network.value, network.advantage_head):
            torch.nn.init.normal_(head.weight, std=0.3)
    return acer


def random_segments(seed=0, stack=2, dtype=torch.float64, lstm=0):
    """A batch for `build`, and the arrays of the same episodes that the reference takes."""
    arrays = reference_continuous.random_batch(seed, SIZES)
    generator = torch.Generator().manual_seed(seed)
    planes = SIZES.length + stack
    given = {name: torch.from_numpy(array) for name, array in arrays.items()}
    noise = torch.randn(*given["mask"].shape, 6, SIZES.actions, generator=generator, dtype=dtype)
    batch = NoisyBatch(
        obs=torch.randn(planes, SIZES.columns, PLANE, generator=generator, dtype=dtype),
        episode_step=torch.randint(0, 4, (planes, SIZES.columns), generator=generator, dtype=torch.int32),
        action=given["action"].clamp(-1, 1).to(dtype),
        reward=given["reward"].to(dtype),
        terminated=given["terminated"],
        truncated=given["truncated"],
        mask=given["mask"],
        extras={
            "mean": given["mu_mean"].to(dtype),
            "log_std": given["mu_log_std"].to(dtype),
            "sample": given["action"].to(dtype),
        },
        state=recurrent_state(generator, lstm, dtype),
        weights_version=torch.zeros(SIZES.columns, dtype=torch.int64),
        fresh=torch.zeros(SIZES.columns, dtype=torch.bool),
        importance=given["importance"].to(dtype),
        noise={"actions": noise},
    )
    return batch, arrays


def recurrent_state(generator, lstm, dtype=torch.float64):
    """That of the policy and that of the critic."""
    own, critics = (random_state(generator, lstm, dtype) for _ in range(2))
    return own | {f"critic_{name}": value for name, value in critics.items()}
