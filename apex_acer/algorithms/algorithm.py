"""What the fabric must know of an algorithm.

Adding one is a file here, its settings in `config/learning.py` and an entry in `ALGORITHMS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from apex_acer.config import RunConfig
from apex_acer.networks import Network, State
from apex_acer.trajectory import Batch, EnvironmentSpec, Unroll


class Action(NamedTuple):
    """What a policy did: `action` `[N]` int64, `behaviour` (the whole mu) `[N, …]` float32, the next `state`."""

    action: Tensor
    behaviour: dict[str, Tensor]
    state: State


class LossOutput(NamedTuple):
    """`loss` to minimise, detached scalar `metrics`, `priorities` `[B]` for a prioritized replay.

    Loss and metrics are means over `num_samples` samples, so that those of a batch follow from those of its parts.
    """

    loss: Tensor
    metrics: dict[str, Tensor]
    priorities: Tensor
    num_samples: Tensor


class Algorithm(ABC):
    """The static half is what a policy needs; an instance is the learner's side and owns the trained network."""

    fresh: bool
    """Whether each segment is trained on once as it arrives, beside what replay gives."""
    network: Network

    @abstractmethod
    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None: ...

    @staticmethod
    @abstractmethod
    def build_network(config: RunConfig, spec: EnvironmentSpec) -> Network:
        """The network a policy acts with: `network(obs [B, *obs_shape]) -> NamedTuple`. Raises `ConfigError`."""

    @staticmethod
    @abstractmethod
    def behaviour_shapes(spec: EnvironmentSpec) -> dict[str, tuple[int, ...]]:
        """Names of mu's parts and their shapes per step."""

    @staticmethod
    @abstractmethod
    def state_shapes(config: RunConfig) -> dict[str, tuple[int, ...]]:
        """Names of the recurrent state's parts and their shapes per environment; empty for feed-forward networks."""

    @staticmethod
    @abstractmethod
    def act(
        network: nn.Module, obs: Tensor, state: State, *, greedy: bool, exploration: float, generator: torch.Generator
    ) -> Action:
        """Chooses actions for raw `obs` `[N, *obs_shape]`; `exploration` is this actor's (a temperature).

        `state` is the recurrent state before `obs`.
        """

    @abstractmethod
    def observe(self, unroll: Unroll, source: Hashable) -> None:
        """Called once with every unroll accepted, for running statistics; `source` tells the actors apart."""

    @abstractmethod
    def loss(self, batch: Batch) -> LossOutput:
        """The loss of one batch, with gradient to `network`; changes nothing, as several threads may ask for one."""

    @abstractmethod
    def after_step(self, metrics: Mapping[str, Tensor]) -> None:
        """Called once after every optimizer step applied, with the metrics of its loss."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """All tensors worth saving by name; those of the policy begin with `network.`."""

    @abstractmethod
    def load(self, tensors: dict[str, Tensor]) -> None:
        """Takes what `tensors()` gave; raises `ConfigError` naming the first tensor that differs."""
