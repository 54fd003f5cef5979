"""The interface between an algorithm and the rest of the program.

A run names one of `ALGORITHMS`, or a user's own as `module:class`; docs/own-algorithm.md shows how to write one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from apex_acer.config import AlgorithmConfig, RunConfig
from apex_acer.networks.torsos import Network, State
from apex_acer.protocol.specification import Array, EnvironmentSpec
from apex_acer.protocol.unroll import Batch, Shapes, Unroll


class Action(NamedTuple):
    """What a policy chose: `action` `[N]` int64, `behaviour` (mu of all actions) `[N, …]` float32, and the next `state`."""

    action: Tensor
    behaviour: dict[str, Tensor]
    state: State


class Feeding(NamedTuple):
    """What an algorithm learns from, besides replay at the replay ratio."""

    fresh: bool
    """Whether each segment is trained on once as it arrives, in batches of fresh segments only."""
    draw: Literal["poisson", "fixed"] = "fixed"
    """How many replays a fresh segment is worth: drawn from Poisson(replay ratio), or exactly the replay ratio."""
    window: int = 0
    """Steps of a sample, of which the first is learned from; 0: samples are whole segments, with all their steps."""


class LossOutput(NamedTuple):
    """The `loss` to minimise, detached scalar `metrics`, and `priorities` `[B]` for prioritized replay.

    Loss and metrics are means over `num_samples` samples, so those of a batch can be computed from those of its parts.
    """

    loss: Tensor
    metrics: dict[str, Tensor]
    priorities: Tensor
    num_samples: Tensor


class Algorithm(ABC):
    """The static methods are what a policy needs; an instance is the learner's side and owns the trained network."""

    settings: ClassVar[type[AlgorithmConfig]] = AlgorithmConfig
    """The type of `config.algorithm`: a frozen dataclass that derives from `AlgorithmConfig`."""

    network: Network

    @abstractmethod
    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None: ...

    # ── every process ──

    @staticmethod
    @abstractmethod
    def build_network(config: RunConfig, spec: EnvironmentSpec) -> Network:
        """The network that a policy acts with: `network(obs [B, *obs_shape]) -> NamedTuple`. May raise `ConfigError`."""

    @staticmethod
    @abstractmethod
    def behaviour_shapes(config: RunConfig, spec: EnvironmentSpec) -> Shapes:
        """The names and the shapes per step of an unroll's `behaviour`."""

    @staticmethod
    def state_shapes(config: RunConfig) -> Shapes:
        """The names and the shapes per environment of the recurrent state; empty for feed-forward networks."""
        return {}

    @staticmethod
    @abstractmethod
    def exploration(config: RunConfig, num: int, actor: int | None = None) -> Tensor:
        """How much each of `num` environments explores, `[num]` float32; `actor` is an index, or None in an evaluation."""

    @staticmethod
    @abstractmethod
    def act(
        network: nn.Module, obs: Tensor, state: State, *, greedy: bool, exploration: Tensor, generator: torch.Generator
    ) -> Action:
        """Chooses actions for raw `obs` `[N, *obs_shape]` with `exploration` `[N]`; `state` is the recurrent one."""

    # ── an actor ──

    @staticmethod
    def looks_ahead(config: RunConfig) -> bool:
        """Whether `complete` needs the behaviour at the observation after an unroll."""
        return False

    @staticmethod
    def complete(config: RunConfig, unroll: Unroll, ahead: dict[str, Array]) -> Unroll:
        """The unroll as it is sent, with the `behaviour_shapes`; `ahead` `[N, …]` is the behaviour of the step after it."""
        return unroll

    # ── the learner ──

    @staticmethod
    @abstractmethod
    def feeding(config: RunConfig) -> Feeding:
        """What batches consist of."""

    @abstractmethod
    def observe(self, unroll: Unroll, source: Hashable) -> None:
        """Called once with every accepted unroll, to update running statistics; `source` identifies the actor."""

    def statistics(self) -> list[Tensor]:
        """The tensors that `observe` changes. The first of several learners sends them to the others before each update."""
        return list(self.network.buffers())

    @abstractmethod
    def loss(self, batch: Batch) -> LossOutput:
        """The loss of one batch, with gradient to `network`; changes nothing, as several threads may call it at once."""

    @abstractmethod
    def after_step(self, metrics: Mapping[str, Tensor]) -> None:
        """Called after every optimizer step that was taken, with the metrics of its loss."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """All tensors to save, by name; those of the policy begin with `network.`."""

    @abstractmethod
    def load(self, tensors: dict[str, Tensor]) -> None:
        """Loads what `tensors()` returned; raises `ConfigError` naming the first tensor that differs."""
