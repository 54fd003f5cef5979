"""A second algorithm in one file, as docs/own-algorithm.md explains it: expected Sarsa, acting by a softmax of Q."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import torch
from torch import Tensor, nn

from apex_acer.algorithms.algorithm import Action, Algorithm, Feeding, LossOutput
from apex_acer.config import RunConfig
from apex_acer.networks.frames import stack_planes
from apex_acer.networks.torsos import QNetwork, State
from apex_acer.networks.weights import load_tensors, named_tensors
from apex_acer.protocol.trajectory import Batch, EnvironmentSpec, Shapes, Unroll


class ExpectedSarsa(Algorithm):
    """Q(o, a) ← r + gamma · V(o'), with V = Σ π Q and π = softmax(Q); needs no mu, because V asks for no action taken."""

    network: QNetwork

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None:
        self._gamma, self._stack = config.algorithm.gamma, spec.stack
        self.network = self.build_network(config, spec).to(device)

    @staticmethod
    def build_network(config: RunConfig, spec: EnvironmentSpec) -> QNetwork:
        """A `QNetwork`."""
        return QNetwork(config.network, spec, is_dueling=False)

    @staticmethod
    def behaviour_shapes(config: RunConfig, spec: EnvironmentSpec) -> Shapes:
        """Nothing."""
        return {}

    @staticmethod
    def exploration(config: RunConfig, num: int, actor: int | None = None) -> Tensor:
        """A temperature of 1."""
        return torch.ones(num)

    @staticmethod
    def feeding(config: RunConfig) -> Feeding:
        """Whole segments, each fresh once."""
        return Feeding("separate")

    @staticmethod
    def act(
        network: nn.Module, obs: Tensor, state: State, *, greedy: bool, exploration: Tensor, generator: torch.Generator
    ) -> Action:
        """Samples from softmax(Q / exploration), or takes the highest Q."""
        q = network(obs).q_values  # [N, A]
        if greedy:
            return Action(q.argmax(-1), {}, state)
        pi = (q / exploration.unsqueeze(-1)).softmax(-1)
        return Action(torch.multinomial(pi, 1, generator=generator).squeeze(-1), {}, state)

    def observe(self, unroll: Unroll, source: Hashable) -> None:
        """Keeps the statistics of observations, where the configuration asks for them."""
        self.network.observe(unroll)

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
        loss = 0.5 * (batch.importance * error.square()).sum() / num_steps.clamp(min=1)
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
