"""Deterministic policies from replay: DDPG (arXiv 1509.02971), TD3 (arXiv 1802.09477) and Ape-X DPG (arXiv 1803.00933).

With its defaults it is DDPG. With two critics, a policy that is updated less often and smoothed targets it is TD3, and with
prioritized replay, whose first priorities come from the actors, Ape-X DPG.
"""

from __future__ import annotations

import copy
from collections.abc import Collection

import torch
from torch import Tensor

from apex_acer.algorithms.algorithm import Action, Agent, Group, LossOutput, trainable
from apex_acer.algorithms.critics import CriticLosses, follow_, uniform
from apex_acer.algorithms.ddpg.settings import DdpgConfig
from apex_acer.algorithms.samples import Transitions
from apex_acer.config import RunConfig
from apex_acer.functional import correlated_noise, masked_mean, smallest_target, smoothed_action
from apex_acer.networks.critics import Critics, DeterministicPolicy
from apex_acer.networks.network import State, to_train
from apex_acer.protocol.specification import EnvironmentSpec

NOISE = "noise"  # the state of an Ornstein-Uhlenbeck process
Q_TAKEN, VALUE = "q_taken", "value"  # what an actor keeps until an unroll is complete


class DdpgAgent(Agent):
    """Adds noise to a deterministic policy's actions.

    If replay is prioritized the critics travel inside the network, so that actors can compute priorities.
    """

    settings: DdpgConfig
    network: DeterministicPolicy

    def __init__(self, config: RunConfig, spec: EnvironmentSpec) -> None:
        super().__init__(config, spec)
        critics = self.settings.critics if self.gives_priorities else 0
        self.network = DeterministicPolicy(config.network, spec, num_critics=critics)
        self._has_memory = self.settings.noise == "ornstein_uhlenbeck" and self.settings.noise_theta < 1
        if self.settings.noise == "ornstein_uhlenbeck":
            self.state = {NOISE: spec.actions.shape}

    def exploration(self, num: int, actor: int | None = None) -> Tensor:
        """Standard deviations of noise `[num]`: environment i of all N has noise_std ^ (1 + i / (N − 1) · alpha)."""
        if actor is None:
            return torch.full((num,), self.settings.noise_std)
        return self.spread(num, actor, self.settings.noise_std, self.settings.noise_alpha)

    def act(
        self, obs: Tensor, state: State, *, greedy: bool, exploration: Tensor, generator: torch.Generator, updates: int
    ) -> Action:
        """Takes the policy's action, with noise unless `greedy`; it is uniform before the first update.

        Noise with memory explores from the start.
        """
        inputs = self.network.prepare(obs)
        best = self.network.output(inputs).action
        if greedy:
            return Action(best, self._evaluated(inputs, best, best), state)
        drawn = torch.randn(best.shape, generator=generator, device=obs.device)
        noise = exploration.unsqueeze(-1) * drawn  # [N, d]
        if self._has_memory:
            noise = correlated_noise(state.get(NOISE, torch.zeros_like(noise)), noise, self.settings.noise_theta)
            state = {NOISE: noise}
        knows_nothing = not (updates or self.config.load or self._has_memory)
        action = uniform(drawn) if knows_nothing else (best + noise).clamp(-1.0, 1.0)
        return Action(action, self._evaluated(inputs, action, best), state)

    def priority(self, steps: Transitions) -> Tensor:
        """|n-step target − Q| of each step, `[k, N]`, the mean over critics; 0 if it is masked.

        The estimates are the actor's own, as if the target networks were as new as the networks.
        """
        target = steps.reward + steps.discount * steps.next_extras[VALUE]
        error = (target.unsqueeze(-1) - steps.extras[Q_TAKEN]).abs().mean(-1)
        return torch.where(steps.mask, error, 0.0)

    def _evaluated(self, inputs: Tensor, action: Tensor, best: Tensor) -> dict[str, Tensor]:
        """Q of the action taken `[N, num]`, and the smallest Q of the policy's own `[N]`; nothing without critics."""
        critics = self.network.critics
        if critics is None:
            return {}
        return {Q_TAKEN: critics(inputs, action).T.float(), VALUE: critics(inputs, best).amin(0).float()}


class Ddpg(CriticLosses):
    """A policy and its critics, and the slow copies of both."""

    settings_class = DdpgConfig
    agent_class = DdpgAgent
    settings: DdpgConfig
    network: DeterministicPolicy

    def __init__(self, agent: Agent, device: torch.device) -> None:
        super().__init__(agent, device)
        config = agent.config
        critics = self.network.critics or Critics(config.network, agent.spec, self.settings.critics)
        self.critics = to_train(critics, config, device)
        self.target_network, self.target_critics = copy.deepcopy((self.network, self.critics))
        self.modules["target_network"] = self.target_network
        if self.network.critics is None:
            self.modules |= {"critics": self.critics, "target_critics": self.target_critics}
        for slow in (self.target_network, self.target_critics):
            slow.requires_grad_(False)

    def groups(self) -> dict[str, Group]:
        """Policy and critics, each with its own optimizer; the policy takes its step on every `policy_every`-th update."""
        critics = trainable(self.critics)
        of_critics = {id(parameter) for parameter in critics}
        policy = [parameter for parameter in trainable(self.network) if id(parameter) not in of_critics]
        return {"network": Group(policy, every=self.settings.policy_every), "critics": Group(critics)}

    def noise(self, samples: Transitions) -> dict[str, Tensor]:
        """What smooths the targets' actions, `[1, B, d]`."""
        if not self.settings.target_noise:
            return {}
        shape = (1, len(samples.importance), self.agent.spec.action_dim)
        return {"target": self.settings.target_noise * torch.randn(shape)}

    def _policy_loss(self, samples: Transitions, inputs: Tensor) -> LossOutput:
        values = self.critics.evaluate(inputs, self.network.output(inputs).action, 1)[0]
        loss = -masked_mean(values, samples.mask)
        metrics = {"value": -loss.detach(), "policy_loss": loss.detach()}
        return LossOutput(loss, metrics, torch.zeros_like(values), samples.mask.sum())

    @torch.no_grad()
    def _target(self, samples: Transitions, after: Tensor) -> Tensor:
        action = self.target_network.output(after).action
        if samples.noise:
            action = smoothed_action(action, samples.noise["target"][0], self.settings.target_noise_clip)
        q_values = self.target_critics(after, action)
        return smallest_target(reward=samples.reward, discount=samples.discount, q_values=q_values)

    def after_step(self, updates: int, stepped: Collection[str]) -> None:
        """Moves the targets towards policy and critics, after each update of the policy."""
        if "network" in stepped:
            for name, slow in self.modules.items():
                if name.startswith("target_"):
                    follow_(slow, self.modules[name.removeprefix("target_")], self.settings.ema_decay)
