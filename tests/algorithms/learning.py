"""What tests of all algorithms share: an algorithm as after some training, the loss of a stored batch and its gradients."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from apex_acer.algorithms import algorithm_class
from apex_acer.algorithms.algorithm import Action, Algorithm, LossOutput
from apex_acer.algorithms.on_policy.pqn import Pqn
from apex_acer.algorithms.unreal.unreal import Unreal
from apex_acer.config import RunConfig
from apex_acer.learner.ranks import ALONE
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import Batch
from tests.runs import tiny_run

PLANE = 4


@dataclass(frozen=True)
class NoisyBatch(Batch):
    """A batch with the random numbers for the loss of it."""

    noise: dict[str, Tensor] = field(default_factory=dict)


def made(name: str, spec: EnvironmentSpec, seed: int = 0, dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
    """The algorithm `name` with different weights in each of its modules, as after some training."""
    torch.manual_seed(seed)
    algorithm = algorithm_class(name).make(run_of(name, **changes), spec, torch.device("cpu"))
    for number, (part, module) in enumerate(algorithm.modules.items()):
        if part != "rewards":
            randomise(module.to(dtype), 10 * seed + number)
    return algorithm


def run_of(name: str, **changes: Any) -> RunConfig:
    """A run of the algorithm `name`; keys without a section are its settings."""
    common: dict[str, Any] = {
        "network__hidden_sizes": (16, 8),
        "learner__precision": "float32",  # that of the parameters, on any processor
        "unroll_length": 8,
        "gamma": 0.9,
        "name": name,
    } | changes
    return tiny_run(**{key if "__" in key else f"algorithm__{key}": value for key, value in common.items()})


def randomise(network: nn.Module, seed: int, std: float = 0.4) -> None:
    """Weights with which values differ from state to state."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=std, generator=generator)


def batch_of(obs: Tensor, action: Tensor, **fields: Any) -> NoisyBatch:
    """Steps with these planes and actions, of one episode and all learned from unless `fields` say otherwise."""
    never, columns = torch.zeros(action.shape[:2], dtype=torch.bool), action.shape[1]
    common: dict[str, Any] = {
        "episode_step": torch.ones(len(obs), columns, dtype=torch.int32),
        "reward": torch.randn(action.shape[:2], dtype=obs.dtype),
        "terminated": never,
        "truncated": never,
        "mask": ~never,
        "extras": {},
        "state": {},
        "weights_version": torch.zeros(columns, dtype=torch.int64),
        "fresh": torch.zeros(columns, dtype=torch.bool),
        "importance": torch.ones(columns, dtype=obs.dtype),
    }
    return NoisyBatch(obs=obs, action=action, **common | fields)


def samples_of(algorithm: Algorithm, batch: Batch) -> Any:
    """What `algorithm` learns from, made of `batch`; for PQN and UNREAL with its targets."""
    samples: Any = replace(algorithm.samples.make(batch), noise=getattr(batch, "noise", {}))
    if isinstance(algorithm, Unreal):
        alone: Any = ALONE  # it adds up what all learners have
        return algorithm.prepare(samples, alone)
    return algorithm.prepare(samples) if isinstance(algorithm, Pqn) else samples


def loss_of(algorithm: Algorithm, batch: Batch) -> LossOutput:
    """The loss on `batch`."""
    return algorithm.loss(samples_of(algorithm, batch))


def gradients(loss: Tensor, algorithm: Algorithm) -> dict[str, Tensor]:
    """The gradient of each group of the algorithm's parameters, in one vector by name; zeros if it has none."""
    found = {}
    for name, group in algorithm.groups().items():
        parts = torch.autograd.grad(
            loss, group.parameters, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        found[name] = torch.cat([part.flatten() for part in parts])
    return found


def gradients_of(algorithm: Algorithm, batch: Batch) -> tuple[LossOutput, dict[str, Tensor]]:
    """The loss of a batch, and its gradients by group."""
    output = loss_of(algorithm, batch)
    return output, gradients(output.loss, algorithm)


def assert_learns_finite_numbers(algorithm: Algorithm, batch: Batch) -> LossOutput:
    """The loss of a batch, of which all numbers are finite, as is the gradient, which is not 0."""
    output, found = gradients_of(algorithm, batch)
    for number in (output.loss, output.priorities, *found.values(), *output.metrics.values()):
        assert number.isfinite().all()
    assert found["network"].any()
    return output


def act(
    algorithm: Algorithm,
    obs: Tensor,
    exploration: Any = 1.0,
    *,
    state: dict[str, Tensor] | None = None,
    seed: int = 0,
    greedy: bool = False,
    updates: int = 1,
) -> Action:
    """What the algorithm's agent does; `exploration` is a number for all observations, or one for each."""
    with torch.no_grad():
        return algorithm.agent.act(
            obs,
            state or {},
            greedy=greedy,
            exploration=torch.as_tensor(exploration, dtype=torch.float32).expand(len(obs)),
            generator=torch.Generator().manual_seed(seed),
            updates=updates,
        )
