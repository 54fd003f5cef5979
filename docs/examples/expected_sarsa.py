"""A second algorithm in one file, as docs/own-algorithm.md explains it: expected Sarsa, acting by a softmax of Q."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from apex_acer.algorithms.algorithm import Action, Algorithm, LossOutput
from apex_acer.config import NetworkConfig, RunConfig
from apex_acer.frames import stack_planes, to_float
from apex_acer.networks import Network, State, build_torso
from apex_acer.trajectory import Batch, EnvironmentSpec, Unroll
from apex_acer.weights import load_tensors, named_tensors


class QOutput(NamedTuple):
    """`q_values` `[B, A]`."""

    q_values: Tensor


class QNetwork(Network):
    """The torso of the run file and one head."""

    def __init__(self, config: NetworkConfig, spec: EnvironmentSpec) -> None:
        super().__init__()
        self.torso, width = build_torso(config, spec)
        self.q_values = nn.Linear(width, spec.num_actions)

    def forward(self, obs: Tensor) -> QOutput:
        """Raw `[B, *obs_shape]` to `QOutput`."""
        return QOutput(self.q_values(self.torso(to_float(obs, self.q_values.weight.dtype))))


class ExpectedSarsa(Algorithm):
    """Q(o, a) ← r + gamma · V(o'), with V = Σ π Q and π = softmax(Q); needs no mu, because V asks for no action taken."""

    fresh = True
    network: QNetwork

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None:
        self._gamma, self._stack = config.algorithm.gamma, spec.stack
        self.network = self.build_network(config, spec).to(device)

    @staticmethod
    def build_network(config: RunConfig, spec: EnvironmentSpec) -> QNetwork:
        """A `QNetwork`."""
        return QNetwork(config.network, spec)

    @staticmethod
    def behaviour_shapes(spec: EnvironmentSpec) -> dict[str, tuple[int, ...]]:
        """Nothing."""
        return {}

    @staticmethod
    def state_shapes(config: RunConfig) -> dict[str, tuple[int, ...]]:
        """No recurrent state."""
        return {}

    @staticmethod
    def act(
        network: nn.Module, obs: Tensor, state: State, *, greedy: bool, exploration: float, generator: torch.Generator
    ) -> Action:
        """Samples from softmax(Q / exploration), or takes the highest Q."""
        q = network(obs).q_values  # [N, A]
        if greedy:
            return Action(q.argmax(-1), {}, state)
        pi = (q / exploration).softmax(-1)
        return Action(torch.multinomial(pi, 1, generator=generator).squeeze(-1), {}, state)

    def observe(self, unroll: Unroll, source: Hashable) -> None:
        """Keeps no statistics."""

    def loss(self, batch: Batch) -> LossOutput:
        """½ (target − Q)² over the steps that are no dummies."""
        obs = stack_planes(batch.obs, batch.episode_step, self._stack)  # [T+1, B, *obs]
        q = self.network(obs.flatten(0, 1)).q_values.unflatten(0, obs.shape[:2])  # [T+1, B, A]
        with torch.no_grad():
            log_pi = q.log_softmax(-1)
            value = (log_pi.exp() * q).sum(-1)  # [T+1, B]
            target = batch.reward + self._gamma * value[1:] * ~batch.terminated  # [T, B]
        q_taken = q[:-1].gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
        error = torch.where(batch.mask, target - q_taken, 0.0)
        num_steps = batch.mask.sum()
        loss = 0.5 * error.square().sum() / num_steps.clamp(min=1)
        entropy = -(log_pi.exp() * log_pi).sum(-1).mean()
        metrics = {"loss": loss.detach(), "q_loss": loss.detach(), "value": value.mean(), "entropy": entropy}
        return LossOutput(loss, metrics, error.detach().abs().mean(0), num_steps)

    def after_step(self, metrics: Mapping[str, Tensor]) -> None:
        """Nothing follows a step; a target network would be moved here."""

    def tensors(self) -> dict[str, Tensor]:
        """The network's."""
        return named_tensors(self.network, "network")

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Takes the network's."""
        load_tensors(self.network, "network", tensors)
