"""Deterministic policies from replay: DDPG (arXiv 1509.02971), TD3 (arXiv 1802.09477) and Ape-X DPG (arXiv 1803.00933).

With its defaults it is DDPG. With two critics, a policy that is updated less often and smoothed targets it is TD3, and with
prioritized replay, whose first priorities come from the actors, Ape-X DPG.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from apex_acer.algorithms.algorithm import Action, Feeding, Group, LossOutput, SeparateLosses, trained
from apex_acer.algorithms.ddpg.settings import DdpgConfig
from apex_acer.algorithms.windows import (
    critics_loss,
    follow_,
    priorities,
    shaped_return,
    spread,
    window_ends,
    with_next,
)
from apex_acer.config import RunConfig
from apex_acer.functional import NStep, correlated_noise, masked_mean, smallest_target, smoothed_action
from apex_acer.networks.critics import Critics, DeterministicPolicy
from apex_acer.networks.network import State, to_train
from apex_acer.protocol.specification import Array, EnvironmentSpec
from apex_acer.protocol.unroll import PRIORITY, Batch, Shapes, Unroll

NOISE = "noise"  # the state of an Ornstein-Uhlenbeck process
Q_TAKEN, VALUE = "q_taken", "value"  # the behaviour that an actor keeps until an unroll is complete


class Ddpg(SeparateLosses):
    """A policy and its critics, and the slow copies of both.

    If replay is prioritized the critics travel to actors inside the network, so that actors can compute priorities.
    """

    settings = DdpgConfig
    network: DeterministicPolicy

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None:
        self._config, self._stack, self._dim = settings(config), spec.stack, spec.action_dim
        self.network = to_train(self.build_network(config, spec), config, device)
        critics = self.network.critics or Critics(config.network, spec, self._config.critics)
        self.critics = to_train(critics, config, device)
        self.target_network, self.target_critics = copy.deepcopy((self.network, self.critics))
        self.modules = {"network": self.network, "target_network": self.target_network}
        if self.network.critics is None:
            self.modules |= {"critics": self.critics, "target_critics": self.target_critics}
        for slow in (self.target_network, self.target_critics):
            slow.requires_grad_(False)

    @staticmethod
    def build_network(config: RunConfig, spec: EnvironmentSpec) -> DeterministicPolicy:
        """A `DeterministicPolicy`, whose output is `action`."""
        given = settings(config)
        theta = given.noise_theta if _remembers(config) else 1.0
        critics = given.critics if config.replay.sampling == "prioritized" else 0
        return DeterministicPolicy(config.network, spec, theta=theta, critics=critics)

    @staticmethod
    def behaviour_shapes(config: RunConfig, spec: EnvironmentSpec) -> Shapes:
        """An initial priority for each step, if replay is prioritized."""
        return {PRIORITY: ()} if config.replay.sampling == "prioritized" else {}

    @staticmethod
    def state_shapes(config: RunConfig, spec: EnvironmentSpec) -> Shapes:
        """The noise of the last step, if noise has memory."""
        return {NOISE: spec.actions.shape} if _remembers(config) else {}

    @staticmethod
    def exploration(config: RunConfig, num: int, actor: int | None = None) -> Tensor:
        """Standard deviations of noise `[num]`: environment i of all N has noise_std ^ (1 + i / (N − 1) · alpha)."""
        given = settings(config)
        if actor is None:
            return torch.full((num,), given.noise_std)
        return spread(config, num, actor, given.noise_std, given.noise_alpha)

    @staticmethod
    def act(
        network: nn.Module, obs: Tensor, state: State, *, greedy: bool, exploration: Tensor, generator: torch.Generator
    ) -> Action:
        """Takes the policy's action, with noise unless `greedy`; before the first update it is uniform."""
        assert isinstance(network, DeterministicPolicy)
        inputs = network.prepare(obs)
        best = network.output(inputs).action
        action = best
        if not greedy:
            drawn = torch.randn(best.shape, generator=generator, device=obs.device)
            noise = exploration.unsqueeze(-1) * drawn  # [N, d]
            if network.theta < 1:
                noise = correlated_noise(state.get(NOISE, torch.zeros_like(noise)), noise, network.theta)
                state = {NOISE: noise}
            action = (best + noise).clamp(-1.0, 1.0)
            if network.theta == 1:  # noise with memory explores from the start
                action = torch.where(network.trained, action, torch.erf(drawn / 2**0.5))  # uniform in the box
        return Action(action, _judged(network.critics, inputs, action, best), state)

    @staticmethod
    def looks_ahead(config: RunConfig) -> bool:
        """True if there are priorities: those of the last steps bootstrap from what follows the unroll."""
        return config.replay.sampling == "prioritized"

    @staticmethod
    def complete(config: RunConfig, unroll: Unroll, ahead: dict[str, Array]) -> Unroll:
        """Replaces the critics' estimates by the priority of each step, |n-step target − Q|, computed from them.

        The estimates are the actor's own, as if the target networks were as new as the networks.
        """
        if not ahead:
            return unroll
        q_taken, value = torch.from_numpy(unroll.behaviour[Q_TAKEN]), with_next(unroll, ahead, VALUE)
        found = priorities(settings(config), unroll, q_taken, value, lambda n, after: n.reward + n.discount * after)
        return dataclasses.replace(unroll, behaviour={PRIORITY: found})

    @staticmethod
    def feeding(config: RunConfig) -> Feeding:
        """Only replay: single steps, each with the n − 1 steps after it."""
        return Feeding(fresh=False, window=settings(config).n_steps)

    def groups(self) -> dict[str, Group]:
        """Policy and critics, each with its own optimizer; the policy takes its step on every `policy_every`-th update."""
        critics = trained(self.critics)
        judges = {id(parameter) for parameter in critics}
        policy = [parameter for parameter in trained(self.network) if id(parameter) not in judges]
        return {"network": Group(policy, every=self._config.policy_every), "critics": Group(critics)}

    def noise(self, batch: Batch) -> dict[str, Tensor]:
        """What smooths the targets' actions, `[1, B, d]`."""
        if not self._config.target_noise:
            return {}
        return {"target": self._config.target_noise * torch.randn(1, len(batch.fresh), self._dim)}

    def losses(self, batch: Batch, updates: int) -> list[Callable[[], LossOutput]]:
        """The critics' loss and, if its step is due, the policy's, each with gradient to its own group only."""
        ahead = shaped_return(self._config, batch.reward, batch.terminated, batch.truncated, batch.mask)
        first, after = (self.network.prepare(obs) for obs in window_ends(batch, ahead.length, self._stack))
        of_critics = partial(self._critics_loss, batch, ahead, first, after)
        of_policy = partial(self._policy_loss, batch, first)
        return [of_critics, of_policy] if updates % self._config.policy_every == 0 else [of_critics]

    def _critics_loss(self, batch: Batch, ahead: NStep, first: Tensor, after: Tensor) -> LossOutput:
        return critics_loss(self.critics(first, batch.action[0]), self._target(ahead, after, batch.noise), batch)

    def _policy_loss(self, batch: Batch, first: Tensor) -> LossOutput:
        mask = batch.mask[0]
        values = self.critics.judge(first, self.network.output(first).action, 1)[0]
        loss = -masked_mean(values, mask)
        metrics = {"value": -loss.detach(), "policy_loss": loss.detach()}
        return LossOutput(loss, metrics, torch.zeros_like(values), mask.sum())

    @torch.no_grad()
    def _target(self, ahead: NStep, after: Tensor, noise: dict[str, Tensor]) -> Tensor:
        action = self.target_network.output(after).action
        if noise:
            action = smoothed_action(action, noise["target"][0], self._config.target_noise_clip)
        return smallest_target(
            reward=ahead.reward, discount=ahead.discount, q_values=self.target_critics(after, action)
        )

    def after_step(self, metrics: Mapping[str, Tensor], updates: int) -> None:
        """Moves the targets towards policy and critics, after each update of the policy."""
        self.network.trained.fill_(True)
        if (updates - 1) % self._config.policy_every == 0:
            for name, slow in self.modules.items():
                if name.startswith("target_"):
                    follow_(slow, self.modules[name.removeprefix("target_")], self._config.ema_decay)


def settings(config: RunConfig) -> DdpgConfig:
    """The `[algorithm]` section of a DDPG run."""
    assert isinstance(config.algorithm, DdpgConfig)
    return config.algorithm


def _remembers(config: RunConfig) -> bool:
    """Whether the exploration's noise has memory."""
    return settings(config).noise == "ornstein_uhlenbeck"


def _judged(critics: Critics | None, inputs: Tensor, action: Tensor, best: Tensor) -> dict[str, Tensor]:
    """Q of the action taken `[N, num]`, and the smallest Q of the policy's own `[N]`; nothing without critics."""
    if critics is None:
        return {}
    return {Q_TAKEN: critics(inputs, action).T.float(), VALUE: critics(inputs, best).amin(0).float()}
