"""The interface between an algorithm and the rest of the program: an agent acts, an algorithm learns.

docs/own-algorithm.md shows how to write one.
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
    """An `action` `[N, *spec.actions.shape]`, its `extras` `[N, …]` float32, and the next recurrent `state`."""

    action: Tensor
    extras: dict[str, Tensor]
    state: State


class Agent(ABC):
    """The half of an algorithm that acts; every process makes one from the run's configuration and the environment."""

    settings: AlgorithmConfig
    """`[algorithm]` of the run, an instance of `Algorithm.settings_class`."""
    network: Network[Any]
    """The network that acts, which the learner trains and sends to actors."""

    def __init__(self, config: RunConfig, spec: EnvironmentSpec) -> None:
        """A subclass makes `network`, and may raise `ConfigError`."""
        self.config, self.spec, self.settings = config, spec, config.algorithm
        self.extras: Shapes = {}
        """Names and shapes per step of what an actor records beside observations, actions and rewards."""
        self.log_probs = ""
        """The name in `extras` of log-probabilities of all actions, which `replay.load` checks; empty: none."""
        self.state: Shapes = {}
        """Names and shapes per environment of the recurrent state, which is zero at an episode's start."""

    @abstractmethod
    def act(
        self, obs: Tensor, state: State, *, greedy: bool, exploration: Tensor, generator: torch.Generator, updates: int
    ) -> Action:
        """Chooses actions.

        Args:
            obs: raw frame stacks `[N, *obs]`.
            state: the recurrent state; an empty one starts an episode.
            greedy: whether to take the best action.
            exploration: `[N]` from `exploration`.
            generator: the source of all random numbers.
            updates: the number of updates of the network's weights.
        """

    def exploration(self, num: int, actor: int | None = None, env_steps: int = 0) -> Tensor:
        """The exploration of each of `num` environments, `[num]` float32: an ε or a standard deviation; here a temperature.

        `actor` is the actor's index, None in an evaluation. Actors ask again whenever new weights arrive, with the
        `env_steps` that the run has made.
        """
        return torch.full((num,), self.temperature(actor))

    def spread(self, num: int, actor: int, base: float, alpha: float) -> Tensor:
        """`[num]` float32: base ^ (1 + i / (N − 1) · alpha) for environment i of all actors' N."""
        last = self.config.actors.count * num - 1
        rank = torch.arange(actor * num, (actor + 1) * num, dtype=torch.float64) / max(last, 1)
        powers: Tensor = base ** (1 + alpha * rank)
        return powers.float()

    def temperature(self, actor: int | None) -> float:
        """The temperature of an actor's policy, 1 in an evaluation."""
        return 1.0 if actor is None else self.config.actors.temperature(actor)

    def priority(self, steps: Transitions) -> Tensor:
        """First priorities `[k, N]` of an unroll's `steps`; without this method new samples get the highest in replay."""
        raise NotImplementedError

    @property
    def gives_priorities(self) -> bool:
        """Whether actors compute first priorities."""
        return type(self).priority is not Agent.priority and self.config.replay.sampling == "prioritized"

    @property
    def layout(self) -> Layout:
        """The layout of the unrolls that an actor sends."""
        extras = self.extras | ({PRIORITY: ()} if self.gives_priorities else {})
        return layout(self.spec, self.settings.sampling.burn_in + self.settings.unroll_length, extras, self.state)

    def complete(self, unroll: Unroll, ahead: Mapping[str, Array]) -> Unroll:
        """The unroll to send, with first priorities if actors compute them.

        `ahead` `[N, …]` are the extras of the step after the unroll; none are needed without priorities.
        """
        extras = {name: unroll.extras[name] for name in self.extras}
        if self.gives_priorities:
            steps = SampleMaker(self.settings).priority_steps(unroll, ahead)
            extras[PRIORITY] = self.priority(steps).numpy()
        return dataclasses.replace(unroll, extras=extras)


class Group(NamedTuple):
    """Parameters with an optimizer and gradient clipping of their own."""

    parameters: list[nn.Parameter]
    every: int = 1
    """Updates per optimizer step of this group."""


class LossOutput(NamedTuple):
    """The `loss` to minimise, detached scalar `metrics`, and `priorities` `[B]` for prioritized replay.

    Loss and metrics are means over `num_samples` samples: so a batch can be computed in parts.
    """

    loss: Tensor
    metrics: dict[str, Tensor]
    priorities: Tensor
    num_samples: Tensor


class Descent(Protocol):
    """The learner's side of `Algorithm.update`."""

    def step(self, samples: Any) -> Mapping[str, Tensor]:
        """Takes one optimizer step on the loss of `samples`; returns its metrics, none if a loss was not finite."""

    def count(self, metrics: Mapping[str, Tensor]) -> None:
        """Counts a step, with its metrics, that the algorithm took without the optimizer."""

    def add(self, tensor: Tensor) -> None:
        """Replaces `tensor` by its sum over all learners."""


class Algorithm(ABC):
    """The half of an algorithm that learns: trains an agent's network and the modules that stay with the learner."""

    settings_class: ClassVar[type[AlgorithmConfig]] = AlgorithmConfig
    """The type of `[algorithm]`: a frozen dataclass that derives from `AlgorithmConfig`."""
    agent_class: ClassVar[type[Agent]]
    """The class of the half that acts."""

    settings: AlgorithmConfig
    network: Network[Any]

    def __init__(self, agent: Agent, device: torch.device) -> None:
        """A subclass adds to `modules`; parameters that are not trained have `requires_grad` off."""
        self.agent, self.settings, self.device = agent, agent.settings, device
        self.network = to_train(agent.network, agent.config, device)
        self.modules: dict[str, nn.Module] = {"network": self.network}
        """All saved modules by name, such as critics and target networks; only `network` is sent to actors."""
        self.samples = SampleMaker(agent.settings)
        if self.samples.scale:
            self.modules["rewards"] = self.samples.scale.to(device)

    @classmethod
    def make(cls, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> Self:
        """The algorithm on `device` with a new agent."""
        return cls(cls.agent_class(config, spec), device)

    # ── what an algorithm computes ──

    @abstractmethod
    def loss(self, samples: Any) -> LossOutput:
        """The loss of `Sequences` or `Transitions`, with gradient to all groups.

        It changes nothing and draws no random numbers, because several threads may call it at once.
        """

    def noise(self, samples: Any) -> dict[str, Tensor]:
        """The loss's random numbers, `[…, B, …]` by name, drawn on the CPU from torch's generator for a whole batch."""
        return {}

    def groups(self) -> dict[str, Group]:
        """The trained parameters by the name of their group; by default one group of all modules."""
        return {"network": Group([p for module in self.modules.values() for p in trainable(module)])}

    def update(self, samples: Any, descent: Descent) -> None:
        """Learns from a batch; by default with one optimizer step on all of it."""
        descent.step(samples)

    def after_step(self, updates: int, stepped: Collection[str]) -> None:
        """A hook after every optimizer step, with the number of updates and the names of the groups that took it."""
        del updates, stepped

    # ── what it inherits ──

    def observe(self, unroll: Unroll, source: Hashable) -> None:
        """Updates running statistics with an accepted unroll, which continues the last one of its `source`.

        Without replay `observe_batch` updates the statistics of observations.
        """
        if self.settings.replay_ratio:
            new = len(unroll.action) - self.settings.sampling.burn_in
            self._observe(torch.from_numpy(unroll.obs[-new:]), torch.from_numpy(unroll.mask[-new:]))
        self.samples.observe(unroll, source, self.agent.spec.stack, self.device)

    def observe_batch(self, batch: Batch) -> None:
        """Adds a batch's observations to the statistics after the update on it, if there is no replay.

        So π is computed with the statistics of the behaviour policy: of the same weights, its ratio to it is 1.
        """
        if not self.settings.replay_ratio:
            self._observe(batch.obs[batch.stack :], batch.mask)

    def _observe(self, planes: Tensor, mask: Tensor) -> None:
        """Adds `planes` `[L, N, *plane]`, without those of steps that an agent waited or that an unroll had no room for."""
        may_lack_steps = self.agent.spec.agents > 1 or self.settings.sampling.whole_episodes
        self.network.observe(planes[mask].unsqueeze(0) if may_lack_steps else planes)

    def statistics(self) -> list[Tensor]:
        """The running statistics, which the first of several learners sends to the others around each update."""
        return [*self.network.buffers(), *(self.samples.scale.buffers() if self.samples.scale else ())]

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of all modules by name; the policy's begin with `network.`."""
        return {name: t for prefix, module in self.modules.items() for name, t in named_tensors(module, prefix).items()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Loads the result of `tensors`; raises `ConfigError` naming the first tensor that does not fit."""
        for prefix, module in self.modules.items():
            load_tensors(module, prefix, tensors)


class SeparateLosses(Algorithm):
    """An algorithm whose loss is a sum of losses without common trained parameters.

    Up to `settings.num_losses` threads compute them side by side, unless a subclass overrides `loss`.
    """

    @abstractmethod
    def losses(self, samples: Any) -> dict[str, Callable[[], LossOutput]]:
        """A function for the loss of each group, called if the group takes a step; the first gives the priorities."""

    def loss(self, samples: Any) -> LossOutput:
        """The sum of all losses."""
        return add_up([loss() for loss in self.losses(samples).values()])


def has_separate_losses(algorithm: Algorithm) -> bool:
    """Whether the loss of `algorithm` is the sum of its `losses`."""
    return isinstance(algorithm, SeparateLosses) and type(algorithm).loss is SeparateLosses.loss


def add_up(outputs: Sequence[LossOutput]) -> LossOutput:
    """The sum of the losses of one batch, with the metrics of all and the priorities of the first."""
    loss = torch.stack([output.loss for output in outputs]).sum()
    metrics = {name: value for output in outputs for name, value in output.metrics.items()}
    return outputs[0]._replace(loss=loss, metrics=metrics | {"loss": loss.detach()})


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """The parameters of `module` that are not frozen."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


@torch.no_grad()
def polyak_update_(average: nn.Module, newest: nn.Module, decay: float) -> None:
    """Moves the parameters of `average` towards those of `newest`: θ′ ← decay · θ′ + (1 − decay) · θ."""
    targets: list[Tensor] = list(average.parameters())
    sources: list[Tensor] = list(newest.parameters())
    torch._foreach_lerp_(targets, sources, 1 - decay)
