"""The interface between an algorithm and the rest of the program: an agent acts, an algorithm learns.

A run names one of `config.ALGORITHMS`, or a user's own as `module:class`; docs/own-algorithm.md shows how to write one.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import torch
from torch import Tensor, nn

from apex_acer.algorithms.samples import SampleMaker, Transitions
from apex_acer.config import AlgorithmConfig, RunConfig
from apex_acer.networks.network import Network, State, to_train
from apex_acer.networks.weights import load_tensors, named_tensors
from apex_acer.protocol.specification import Array, EnvironmentSpec
from apex_acer.protocol.unroll import PRIORITY, Batch, Layout, Shapes, Unroll, layout


class Action(NamedTuple):
    """What an agent chose: `action` `[N, *spec.actions.shape]`, `extras` `[N, …]` float32, and the next `state`."""

    action: Tensor
    extras: dict[str, Tensor]
    state: State


class Agent(ABC):
    """The half of an algorithm that acts, made in every process from what a run is and what its environment is like."""

    settings: AlgorithmConfig
    """`[algorithm]` of the run, an instance of `Algorithm.settings_class`."""
    network: Network
    """The network that acts, which the learner trains and sends: `network(obs [B, *obs]) -> NamedTuple`."""

    def __init__(self, config: RunConfig, spec: EnvironmentSpec) -> None:
        """A subclass makes `network`, and may raise `ConfigError`."""
        self.config, self.spec, self.settings = config, spec, config.algorithm
        self.extras: Shapes = {}
        """Names and shapes per step of what an unroll carries besides observations, actions and rewards."""
        self.log_probs = ""
        """The one of `extras` that has log-probabilities of all actions, which `replay.load` checks; empty: none."""
        self.state: Shapes = {}
        """Names and shapes per environment of what `act` remembers of an episode; all of it is zero when one begins."""

    @abstractmethod
    def act(
        self, obs: Tensor, state: State, *, greedy: bool, exploration: Tensor, generator: torch.Generator, updates: int
    ) -> Action:
        """Chooses actions for raw `obs` `[N, *obs]`.

        Args:
            obs: frame stacks.
            state: what it remembers; an empty one is that of an episode's start.
            greedy: whether to take what the policy thinks best.
            exploration: `[N]` as `exploration` gave it.
            generator: the source of all random numbers.
            updates: how many updates the network has had.
        """

    def exploration(self, num: int, actor: int | None = None) -> Tensor:
        """How much each of `num` environments explores, `[num]` float32; `actor` is an index, or None in an evaluation.

        By default it is the temperature of a policy that is sampled from.
        """
        return torch.full((num,), self.temperature(actor))

    def spread(self, num: int, actor: int, base: float, alpha: float) -> Tensor:
        """`[num]` float32: environment i of all actors' N environments has base ^ (1 + i / (N − 1) · alpha)."""
        last = self.config.actors.count * num - 1
        rank = torch.arange(actor * num, (actor + 1) * num, dtype=torch.float64) / max(last, 1)
        powers: Tensor = base ** (1 + alpha * rank)
        return powers.float()

    def temperature(self, actor: int | None) -> float:
        """The temperature of an actor's policy, 1 in an evaluation."""
        return 1.0 if actor is None else self.config.actors.temperature(actor)

    def priority(self, steps: Transitions) -> Tensor:
        """The first priority `[k, N]` of each of an unroll's `steps`, for prioritized replay.

        Without it a new sample has the highest priority in replay.
        """
        raise NotImplementedError

    @property
    def gives_priorities(self) -> bool:
        """Whether actors compute first priorities."""
        return type(self).priority is not Agent.priority and self.config.replay.sampling == "prioritized"

    @property
    def layout(self) -> Layout:
        """The layout of an unroll as an actor sends it."""
        extras = self.extras | ({PRIORITY: ()} if self.gives_priorities else {})
        return layout(self.spec, self.settings.sampling.burn_in + self.settings.unroll_length, extras, self.state)

    def complete(self, unroll: Unroll, ahead: Mapping[str, Array]) -> Unroll:
        """The unroll as an actor sends it, with first priorities if there are any.

        `ahead` `[N, …]` are the extras of the step after the unroll; none are needed without priorities.
        """
        extras = {name: unroll.extras[name] for name in self.extras}
        if self.gives_priorities:
            steps = SampleMaker(self.settings).priority_steps(unroll, ahead)
            extras[PRIORITY] = self.priority(steps).numpy()
        return dataclasses.replace(unroll, extras=extras)


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

    def step(self, samples: Any) -> Mapping[str, Tensor]:
        """One optimizer step on the loss of `samples`; returns its metrics, none if it was skipped as it was not finite."""

    def count(self, metrics: Mapping[str, Tensor]) -> None:
        """Counts a step that the algorithm took without the optimizer, with its metrics."""

    def add(self, tensor: Tensor) -> None:
        """Replaces `tensor` by its sum over all learners."""


class Algorithm(ABC):
    """The half that learns: the losses of an agent's network and of what stays with the learner."""

    settings_class: ClassVar[type[AlgorithmConfig]] = AlgorithmConfig
    """The type of `[algorithm]`: a frozen dataclass that derives from `AlgorithmConfig`."""
    agent_class: ClassVar[type[Agent]]
    """The half that acts."""

    settings: AlgorithmConfig
    network: Network

    def __init__(self, agent: Agent, device: torch.device) -> None:
        """A subclass adds to `modules`; what it adds and is not to be trained has `requires_grad` off."""
        self.agent, self.settings, self.device = agent, agent.settings, device
        self.network = to_train(agent.network, agent.config, device)
        self.modules: dict[str, nn.Module] = {"network": self.network}
        """All that is saved, by name, such as critics and target networks; `network` alone travels to actors."""
        self.samples = SampleMaker(agent.settings)
        if self.samples.scale:
            self.modules["rewards"] = self.samples.scale.to(device)

    @classmethod
    def make(cls, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> Self:
        """An agent, and the algorithm that trains it on `device`."""
        return cls(cls.agent_class(config, spec), device)

    # ── what an algorithm computes ──

    @abstractmethod
    def loss(self, samples: Any) -> LossOutput:
        """The loss of `Sequences` or `Transitions`, with gradient to all groups.

        It changes nothing and draws no random numbers, as several threads may call it at once.
        """

    def noise(self, samples: Any) -> dict[str, Tensor]:
        """The random numbers that the loss needs, `[…, B, …]` by name, drawn on the CPU from torch's generator.

        They are drawn before a batch is split into parts, so that the loss is the same however it is computed.
        """
        return {}

    def groups(self) -> dict[str, Group]:
        """The parameters that are trained, by the name of their group; by default those of all modules are one group."""
        return {"network": Group([p for module in self.modules.values() for p in trainable(module)])}

    def update(self, samples: Any, descent: Descent) -> None:
        """Learns from a batch: by default one optimizer step on the loss of all of it."""
        descent.step(samples)

    def after_step(self, updates: int, stepped: Collection[str]) -> None:
        """Called after every optimizer step, with the number of updates so far and the names of the groups that took it."""
        del updates, stepped

    # ── what it inherits ──

    def observe(self, unroll: Unroll, source: Hashable) -> None:
        """Updates running statistics with an accepted unroll, each once, which continues the last one of its `source`.

        Without replay the statistics of observations, which the policy depends on, wait for the update (`observe_batch`).
        """
        settings, stack = self.settings, self.agent.spec.stack
        if settings.has_replay:
            new = len(unroll.action) - settings.sampling.burn_in
            self.network.observe(torch.from_numpy(unroll.obs[-new:]))
        self.samples.observe(unroll, source, stack, self.device)

    def observe_batch(self, batch: Batch) -> None:
        """Adds a batch's observations to the statistics after the update on it, if there is no replay.

        So π is computed under the statistics that the actions were chosen with: before the first step its ratio to a
        behaviour policy of the same version is 1.
        """
        if not self.settings.has_replay:
            planes = batch.obs[batch.stack :]  # of whole episodes only those that were made
            whole = self.settings.sampling.whole_episodes
            self.network.observe(planes[batch.mask].unsqueeze(0) if whole else planes)

    def statistics(self) -> list[Tensor]:
        """The running statistics. The first of several learners sends them to the others before and after each update."""
        return [*self.network.buffers(), *(self.samples.scale.buffers() if self.samples.scale else ())]

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
    def losses(self, samples: Any) -> dict[str, Callable[[], LossOutput]]:
        """The losses by the group that each is for, to be computed in any order; the first one has the priorities.

        Those of groups whose step is not due are not computed.
        """

    def loss(self, samples: Any) -> LossOutput:
        """The sum of all losses."""
        return add_up([loss() for loss in self.losses(samples).values()])


def has_separate_losses(algorithm: Algorithm) -> bool:
    """Whether `algorithm` learns from the sum of its `losses`, and from no other loss."""
    return isinstance(algorithm, SeparateLosses) and type(algorithm).loss is SeparateLosses.loss


def add_up(outputs: Sequence[LossOutput]) -> LossOutput:
    """The sum of several losses of one batch, with the metrics of all and the priorities of the first."""
    loss = torch.stack([output.loss for output in outputs]).sum()
    metrics = {name: value for output in outputs for name, value in output.metrics.items()}
    return outputs[0]._replace(loss=loss, metrics=metrics | {"loss": loss.detach()})


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """The parameters of `module` that are trained: all but frozen ones."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]
