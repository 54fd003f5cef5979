"""Deterministic policies from replay: DDPG (arXiv 1509.02971), TD3 (arXiv 1802.09477) and Ape-X DPG (arXiv 1803.00933).

The defaults are DDPG. Two critics, delayed policy updates and smoothed targets make it TD3; prioritized replay, with first
priorities from the actors, makes it Ape-X DPG.
"""

from __future__ import annotations

import copy
from collections.abc import Collection

import torch
from torch import Tensor

from apex_acer.algorithms.algorithm import Action, Agent, Group, LossOutput, polyak_update_
from apex_acer.algorithms.critics import CriticLosses, uniform
from apex_acer.algorithms.ddpg.settings import DdpgConfig
from apex_acer.algorithms.samples import Transitions
from apex_acer.config import RunConfig
from apex_acer.functional import correlated_noise, masked_mean, smallest_target, smoothed_action
from apex_acer.networks.critics import Critics, DeterministicPolicy
from apex_acer.networks.network import State, to_train
from apex_acer.protocol.specification import EnvironmentSpec

NOISE = "noise"  # the state of an Ornstein-Uhlenbeck process
Q_TAKEN, VALUE = "q_taken", "value"  # recorded for first priorities, not sent


class DdpgAgent(Agent):
    """Adds noise to a deterministic policy's actions.

    With prioritized replay the critics are part of the network, so that actors can compute first priorities.
    """

    settings: DdpgConfig
    network: DeterministicPolicy

    def __init__(self, config: RunConfig, spec: EnvironmentSpec) -> None:
        super().__init__(config, spec)
        num_critics = self.settings.num_critics if self.gives_priorities else 0
        self.network = DeterministicPolicy(config.network, spec, num_critics=num_critics)
        if self.settings.noise == "ornstein_uhlenbeck":
            self.state = {NOISE: spec.actions.shape}

    def exploration(self, num: int, actor: int | None = None, env_steps: int = 0) -> Tensor:
        """Standard deviations of noise `[num]`: noise_std ^ (1 + i / (N − 1) · alpha) for environment i of all N."""
        if actor is None:
            return torch.full((num,), self.settings.noise_std)
        return self.spread(num, actor, self.settings.noise_std, self.settings.noise_alpha)

    def act(
        self, obs: Tensor, state: State, *, greedy: bool, exploration: Tensor, generator: torch.Generator, updates: int
    ) -> Action:
        """Takes the policy's action, with noise unless `greedy`.

        Before the first update actions are uniform, unless the noise is correlated, which explores well enough.
        """
        encoded = self.network.encode(self.network.prepare(obs))
        best = self.network.decide(encoded).action
        if greedy:
            return Action(best, self._q_values(encoded, best, best), state)
        innovation = torch.randn(best.shape, generator=generator, device=obs.device)
        noise = exploration.unsqueeze(-1) * innovation  # [N, d]
        if self.state:
            noise = correlated_noise(state.get(NOISE, torch.zeros_like(noise)), noise, self.settings.noise_theta)
            state = {NOISE: noise}
        is_trained = updates or self.config.load or self.state
        action = (best + noise).clamp(-1.0, 1.0) if is_trained else uniform(innovation)
        return Action(action, self._q_values(encoded, action, best), state)

    def priority(self, steps: Transitions) -> Tensor:
        """|n-step target − Q| `[k, N]`, the mean over critics, by the actor's weights alone; 0 on masked steps."""
        target = steps.reward + steps.discount * steps.next_extras[VALUE]
        error = (target.unsqueeze(-1) - steps.extras[Q_TAKEN]).abs().mean(-1)
        return torch.where(steps.mask, error, 0.0)

    def _q_values(self, encoded: Tensor, action: Tensor, best: Tensor) -> dict[str, Tensor]:
        """Q of the action taken `[N, num]`, and the smallest Q of the policy's action `[N]`; empty without critics."""
        critics = self.network.critics
        if critics is None:
            return {}
        return {Q_TAKEN: critics(encoded, action).T.float(), VALUE: critics(encoded, best).amin(0).float()}


class Ddpg(CriticLosses):
    """A policy, its critics, and a target network of each."""

    settings_class = DdpgConfig
    agent_class = DdpgAgent
    settings: DdpgConfig
    network: DeterministicPolicy

    def __init__(self, agent: Agent, device: torch.device) -> None:
        super().__init__(agent, device)
        config = agent.config
        width = self.network.encoder_width
        critics = self.network.critics or Critics(config.network, agent.spec, self.settings.num_critics, width)
        self.critics = to_train(critics, config, device)
        self.target_network, self.target_critics = copy.deepcopy((self.network, self.critics))
        self.modules["target_network"] = self.target_network
        if self.network.critics is None:
            self.modules |= {"critics": self.critics, "target_critics": self.target_critics}
        for module in (self.target_network, self.target_critics):
            module.requires_grad_(False)

    def groups(self) -> dict[str, Group]:
        parameters = self.parameters()
        policy = Group(parameters["network"], every=self.settings.policy_every)
        return {"network": policy, "critics": Group(parameters["critics"])}

    def noise(self, samples: Transitions) -> dict[str, Tensor]:
        """The noise `[1, B, d]` that smooths the targets' actions, and shifts of images."""
        noise = super().noise(samples)
        if self.settings.target_noise:
            shape = (1, len(samples.importance), self.agent.spec.action_dim)
            noise["target"] = self.settings.target_noise * torch.randn(shape)
        return noise

    def _critics_loss(self, samples: Transitions, encoded: Tensor, next_inputs: Tensor) -> LossOutput:
        output = super()._critics_loss(samples, encoded, next_inputs)
        if not self.settings.critic_decay:
            return output
        squares = torch.stack([weight.square().sum() for weight in self.critics.weights]).sum()
        return output._replace(loss=output.loss + 0.5 * self.settings.critic_decay * squares)

    def _policy_loss(self, samples: Transitions, encoded: Tensor) -> LossOutput:
        q_values = self.critics.evaluate(encoded, self.network.decide(encoded).action, 1)[0]
        loss = -masked_mean(q_values, samples.mask)
        metrics = {"value": -loss.detach(), "policy_loss": loss.detach()}
        return LossOutput(loss, metrics, torch.zeros_like(q_values), samples.mask.sum())

    def _estimate(self, samples: Transitions, encoded: Tensor, next_inputs: Tensor) -> tuple[Tensor, Tensor]:
        return self.critics(encoded, samples.action), self._target(samples, next_inputs)

    @torch.no_grad()
    def _target(self, samples: Transitions, next_inputs: Tensor) -> Tensor:
        encoded = self.target_network.encode(next_inputs)
        action = self.target_network.decide(encoded).action
        if "target" in samples.noise:
            action = smoothed_action(action, samples.noise["target"][0], self.settings.target_noise_clip)
        q_values = self.target_critics(encoded, action)
        return smallest_target(reward=samples.reward, discount=samples.discount, q_values=q_values)

    def after_step(self, updates: int, stepped: Collection[str]) -> None:
        if "network" in stepped:
            for name, module in self.modules.items():
                if name.startswith("target_"):
                    polyak_update_(module, self.modules[name.removeprefix("target_")], self.settings.ema_decay)
