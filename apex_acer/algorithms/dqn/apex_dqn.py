"""Ape-X DQN: double, dueling n-step Q-learning from prioritized replay, with an epsilon per environment.

Horgan et al. 2018 (arXiv 1803.00933). With uniform replay, one epsilon and one step it is the DQN of Mnih et al. 2015 on
many actors, as in Gorila (Nair et al. 2015, arXiv 1507.04296).
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from apex_acer.algorithms.algorithm import Action, Algorithm, Feeding, LossOutput
from apex_acer.algorithms.dqn.settings import ApexDqnConfig
from apex_acer.algorithms.windows import priorities, shaped_return, spread, window_ends, with_next
from apex_acer.config import RunConfig
from apex_acer.functional import bootstrap_value, masked_means, n_step_target, random_legal
from apex_acer.networks.discrete import QNetwork
from apex_acer.networks.network import State, to_train
from apex_acer.protocol.specification import Array, EnvironmentSpec
from apex_acer.protocol.unroll import PRIORITY, Batch, Shapes, Unroll

Q_VALUES = "q_values"  # the behaviour that an actor keeps until an unroll is complete


class ApexDqn(Algorithm):
    """A Q network, and the target network, an earlier copy of it."""

    settings = ApexDqnConfig
    network: QNetwork

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None:
        self._config, self._stack = settings(config), spec.stack
        self.network = to_train(self.build_network(config, spec), config, device)
        self.target_network = copy.deepcopy(self.network).requires_grad_(False)
        self.modules = {"network": self.network, "target": self.target_network}

    @staticmethod
    def build_network(config: RunConfig, spec: EnvironmentSpec) -> QNetwork:
        """A `QNetwork`, whose output is `q_values`."""
        return QNetwork(config.network, spec, is_dueling=settings(config).dueling)

    @staticmethod
    def behaviour_shapes(config: RunConfig, spec: EnvironmentSpec) -> Shapes:
        """An initial priority for each step, if replay is prioritized."""
        return {PRIORITY: ()} if config.replay.sampling == "prioritized" else {}

    @staticmethod
    def exploration(config: RunConfig, num: int, actor: int | None = None) -> Tensor:
        """Epsilons `[num]`: environment i of all actors' N environments has epsilon ^ (1 + i / (N − 1) · alpha).

        In the paper an actor has one environment.
        """
        given = settings(config)
        if actor is None:
            return torch.full((num,), given.evaluation_epsilon)
        return spread(config, num, actor, given.epsilon, given.epsilon_alpha)

    @staticmethod
    def act(
        network: nn.Module, obs: Tensor, state: State, *, greedy: bool, exploration: Tensor, generator: torch.Generator
    ) -> Action:
        """Takes the action of the highest Q, or with probability epsilon a random one."""
        assert isinstance(network, QNetwork)
        output, state = network.step(obs, state)
        q_values = output.q_values.float()  # [N, A]
        action = q_values.argmax(-1)
        if not greedy:
            chance, other = torch.rand(2, len(action), generator=generator, device=obs.device)
            action = torch.where(chance < exploration, random_legal(q_values, other), action)
        return Action(action, {Q_VALUES: q_values}, state)

    @staticmethod
    def looks_ahead(config: RunConfig) -> bool:
        """True if there are priorities: those of the last steps bootstrap from what follows the unroll."""
        return config.replay.sampling == "prioritized"

    @staticmethod
    def complete(config: RunConfig, unroll: Unroll, ahead: dict[str, Array]) -> Unroll:
        """Replaces the Q values by the priority of each step, which is computed from them."""
        return dataclasses.replace(
            unroll, behaviour={PRIORITY: first_priorities(config, unroll, ahead)} if ahead else {}
        )

    @staticmethod
    def feeding(config: RunConfig) -> Feeding:
        """Only replay: single steps, each with the n − 1 steps after it."""
        return Feeding(fresh=False, window=settings(config).n_steps)

    def loss(self, batch: Batch, updates: int) -> LossOutput:
        """The Huber loss between Q of the first step of each window and its n-step target, weighted by `importance`."""
        given, actions = self._config, batch.action[0].unsqueeze(-1)
        ahead = shaped_return(given, batch.reward, batch.terminated, batch.truncated, batch.mask)
        first, after = window_ends(batch, ahead.length, self._stack)
        q_values = self.network(first).q_values  # [B, A]
        q_taken = q_values.gather(-1, actions).squeeze(-1)  # [B]
        with torch.no_grad():
            inputs = self.network.prepare(after)
            judge = self.target_network.output(inputs).q_values
            choose = self.network.output(inputs).q_values if given.double else judge
            target = n_step_target(ahead, bootstrap_value(choose, judge), rescaled=given.value_rescaling)
        mask = batch.mask[0]
        error = torch.where(mask, target - q_taken, 0.0)
        huber = nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none")
        num_samples = mask.sum()
        loss = (batch.importance * huber).sum() / num_samples.clamp(min=1)
        absolute = error.detach().abs()
        samples = {
            "td_error": absolute,
            "q_taken": q_taken,
            "q_target": target,
            "value": q_values.amax(-1),
            "importance": batch.importance,
        }
        metrics = masked_means(samples, mask) | {"loss": loss.detach(), "q_loss": loss.detach()}
        return LossOutput(loss, metrics, absolute, num_samples)

    def after_step(self, metrics: Mapping[str, Tensor], updates: int) -> None:
        """Copies the network into the target network every `target_every` updates."""
        if updates % self._config.target_every == 0:
            self.target_network.load_state_dict(self.network.state_dict())


def settings(config: RunConfig) -> ApexDqnConfig:
    """The `[algorithm]` section of an Ape-X DQN run."""
    assert isinstance(config.algorithm, ApexDqnConfig)
    return config.algorithm


def first_priorities(config: RunConfig, unroll: Unroll, ahead: dict[str, Array]) -> Array:
    """|n-step target − Q| of each step, `[k, N]`; 0 if it is masked.

    Q is the actor's own, which both chooses and evaluates the action that is bootstrapped from, as if the target network
    were as new as the network.
    """
    given = settings(config)
    q_values = with_next(unroll, ahead, Q_VALUES)  # [k+1, N, A]
    q_taken = q_values[:-1].gather(-1, torch.from_numpy(unroll.action).unsqueeze(-1))
    target = functools.partial(n_step_target, rescaled=given.value_rescaling)
    return priorities(given, unroll, q_taken, q_values.amax(-1), target)
