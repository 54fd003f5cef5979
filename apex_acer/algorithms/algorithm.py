"""What the fabric must know of an algorithm.

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
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import Array, Batch, Shapes, Unroll


class Action(NamedTuple):
    """What a policy did: `action` `[N]` int64, `behaviour` (the whole mu) `[N, …]` float32, the next `state`."""

    action: Tensor
    behaviour: dict[str, Tensor]
    state: State


class Feeding(NamedTuple):
    """What the learner gives an algorithm to learn from, beside replay at the replay ratio."""

    fresh: bool
    """Whether each segment is trained on once as it arrives, in batches of its own."""
    draw: Literal["poisson", "fixed"] = "fixed"
    """How much replay a fresh segment is worth: drawn from Poisson of the replay ratio, or just that."""
    window: int = 0
    """Steps of a sample, which learns the first of them; 0: samples are whole segments, which learn all of theirs."""


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

    settings: ClassVar[type[AlgorithmConfig]] = AlgorithmConfig
    """The type of `config.algorithm`: a frozen dataclass that derives from `AlgorithmConfig`."""

    network: Network

    @abstractmethod
    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None: ...

    # ── every process ──

    @staticmethod
    @abstractmethod
    def build_network(config: RunConfig, spec: EnvironmentSpec) -> Network:
        """The network a policy acts with: `network(obs [B, *obs_shape]) -> NamedTuple`. Raises `ConfigError`."""

    @staticmethod
    @abstractmethod
    def behaviour_shapes(config: RunConfig, spec: EnvironmentSpec) -> Shapes:
        """Names of what an unroll says of each step's behaviour policy, and their shapes per step."""

    @staticmethod
    def state_shapes(config: RunConfig) -> Shapes:
        """Names of the recurrent state's parts and their shapes per environment; empty for feed-forward networks."""
        return {}

    @staticmethod
    @abstractmethod
    def exploration(config: RunConfig, num: int, actor: int | None = None) -> Tensor:
        """How much each of `num` environments explores, `[num]` float32: those of an actor, or of an evaluation (None)."""

    @staticmethod
    @abstractmethod
    def act(
        network: nn.Module, obs: Tensor, state: State, *, greedy: bool, exploration: Tensor, generator: torch.Generator
    ) -> Action:
        """Chooses actions for raw `obs` `[N, *obs_shape]`, each with its `exploration` `[N]`.

        `state` is the recurrent state before `obs`.
        """

    # ── an actor ──

    @staticmethod
    def looks_ahead(config: RunConfig) -> bool:
        """Whether `complete` needs the behaviour at the observation after an unroll."""
        return False

    @staticmethod
    def complete(config: RunConfig, unroll: Unroll, ahead: dict[str, Array]) -> Unroll:
        """What is shipped of an unroll, of `behaviour_shapes`; `ahead` `[N, …]` is the behaviour that follows it."""
        return unroll

    # ── the learner ──

    @staticmethod
    @abstractmethod
    def feeding(config: RunConfig) -> Feeding:
        """What batches are made of."""

    @abstractmethod
    def observe(self, unroll: Unroll, source: Hashable) -> None:
        """Called once with every unroll accepted, for running statistics; `source` tells the actors apart."""

    def statistics(self) -> list[Tensor]:
        """What `observe` keeps, which of several learners the first one gives to the others before each update."""
        return list(self.network.buffers())

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
