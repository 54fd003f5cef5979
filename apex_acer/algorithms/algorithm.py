"""The interface between an algorithm and the rest of the program.

A run names one of `ALGORITHMS`, or a user's own as `module:class`; docs/own-algorithm.md shows how to write one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from apex_acer.config import AlgorithmConfig, RunConfig
from apex_acer.networks.network import Network, State
from apex_acer.networks.weights import load_tensors, named_tensors
from apex_acer.protocol.specification import Array, EnvironmentSpec
from apex_acer.protocol.unroll import Batch, Shapes, Unroll


class Action(NamedTuple):
    """What a policy chose: `action` `[N, *spec.actions.shape]`, `behaviour` `[N, …]` float32, and the next `state`."""

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
    whole_episodes: bool = False
    """Whether each segment is one episode from its start, whose steps after its end are masked."""
    overlap: int = 0
    """Steps in front of each segment: the last ones of the segment before it, masked, as they were counted there."""


class Group(NamedTuple):
    """Parameters that have an optimizer of their own, and are clipped by the norm of their own gradient."""

    parameters: list[nn.Parameter]
    learning_rate: float | None = None
    """At the start; None: `optimizer.learning_rate`."""
    every: int = 1
    """The group takes its step on every `every`-th update."""


class LossOutput(NamedTuple):
    """The `loss` to minimise, detached scalar `metrics`, and `priorities` `[B]` for prioritized replay.

    Loss and metrics are means over `num_samples` samples, so those of a batch can be computed from those of its parts.
    """

    loss: Tensor
    metrics: dict[str, Tensor]
    priorities: Tensor
    num_samples: Tensor


class Descent(Protocol):
    """The steps by which an algorithm learns from one batch, as the learner takes them."""

    metrics: list[Mapping[str, Tensor]]
    """Metrics of each step that was taken."""

    def step(self, batch: Batch) -> Mapping[str, Tensor]:
        """One optimizer step on the loss of `batch`; returns its metrics, none if it was skipped as it was not finite."""

    def count(self, metrics: Mapping[str, Tensor]) -> None:
        """Counts a step that the algorithm took without the optimizer, with its metrics."""

    def add(self, tensor: Tensor) -> None:
        """Replaces `tensor` by its sum over all learners."""


class Algorithm(ABC):
    """The static methods are what a policy needs; an instance is the learner's side and owns the trained network."""

    settings: ClassVar[type[AlgorithmConfig]] = AlgorithmConfig
    """The type of `config.algorithm`: a frozen dataclass that derives from `AlgorithmConfig`."""

    network: Network
    """The network that travels to actors."""
    modules: dict[str, nn.Module]
    """All that is saved, by name: `network`, and what stays with the learner, such as critics and target networks."""

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
    def state_shapes(config: RunConfig, spec: EnvironmentSpec) -> Shapes:
        """The names and the shapes per environment of what the policy remembers between the steps of an episode.

        This is the state of an LSTM, or of noise with memory; all of it is zero when an episode begins.
        """
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
        """Chooses actions for raw `obs` `[N, *obs_shape]` with `exploration` `[N]`; `state` is what it remembers."""

    @staticmethod
    def refusal(behaviour: Mapping[str, Array]) -> str:
        """Why the `behaviour` `[n, …]` of n steps cannot be what a policy recorded, in one line; empty if it can.

        It is asked of unrolls from elsewhere (`replay.load`), after shapes and types, and that all numbers are finite.
        """
        del behaviour
        return ""

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

    def observe(self, unroll: Unroll, source: Hashable) -> None:
        """Called once with every accepted unroll of the actor `source`, to update running statistics.

        By default these are the network's own, of observations, if the configuration asks for them.
        """
        self.network.observe(torch.from_numpy(unroll.obs[-len(unroll.action) :]))

    def statistics(self) -> list[Tensor]:
        """The running statistics. The first of several learners sends them to the others before and after each update."""
        return list(self.network.buffers())

    def groups(self) -> dict[str, Group]:
        """The parameters that are trained, by the name of their group; by default those of all modules are one group."""
        return {"network": Group([p for module in self.modules.values() for p in trained(module)])}

    def noise(self, batch: Batch) -> dict[str, Tensor]:
        """The random numbers that the loss of `batch` needs, `[…, B, …]` by name, drawn on the CPU from torch's generator.

        They are drawn before a batch is split into parts, so that the loss is the same however it is computed.
        """
        return {}

    def update(self, batch: Batch, descent: Descent) -> None:
        """Learns from a batch: by default one optimizer step on the loss of all of it."""
        descent.step(batch)

    @abstractmethod
    def loss(self, batch: Batch, updates: int) -> LossOutput:
        """The loss of one batch after `updates` updates, with gradient to all groups that take their step now.

        It changes nothing and draws no random numbers, as several threads may call it at once.
        """

    def after_step(self, metrics: Mapping[str, Tensor], updates: int) -> None:
        """Called after every optimizer step that was taken, with the metrics of its loss; `updates` counts this one."""
        del metrics, updates

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of all modules, by name; those of the policy begin with `network.`."""
        return {name: t for prefix, module in self.modules.items() for name, t in named_tensors(module, prefix).items()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Loads what `tensors()` returned; raises `ConfigError` naming the first tensor that differs."""
        for prefix, module in self.modules.items():
            load_tensors(module, prefix, tensors)


class SeparateLosses(Algorithm):
    """An algorithm whose loss is a sum of losses that share no trained parameters: threads compute them side by side.

    `settings.num_losses` says how many threads gain from it. If a class derives from such an algorithm and has a `loss` of
    its own, that is computed whole.
    """

    @abstractmethod
    def losses(self, batch: Batch, updates: int) -> list[Callable[[], LossOutput]]:
        """The losses of a batch after `updates` updates, to be computed in any order; the first one has the priorities."""

    def loss(self, batch: Batch, updates: int) -> LossOutput:
        """Their sum."""
        return add_up([loss() for loss in self.losses(batch, updates)])


def has_separate_losses(algorithm: Algorithm) -> bool:
    """Whether `algorithm` learns from the sum of its `losses`, and from no other loss."""
    return isinstance(algorithm, SeparateLosses) and type(algorithm).loss is SeparateLosses.loss


def add_up(outputs: Sequence[LossOutput]) -> LossOutput:
    """The sum of several losses of one batch, with the metrics of all and the priorities of the first."""
    loss = torch.stack([output.loss for output in outputs]).sum()
    metrics = {name: value for output in outputs for name, value in output.metrics.items()}
    return outputs[0]._replace(loss=loss, metrics=metrics | {"loss": loss.detach()})


def trained(module: nn.Module) -> list[nn.Parameter]:
    """The parameters of `module` that are trained: all but frozen ones."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]
