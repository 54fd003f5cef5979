"""An algorithm of one's own: Expected Sarsa (van Seijen et al. 2009), acting by a softmax of Q."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from apex_acer.algorithms.algorithm import Action, Algorithm, Feeding, LossOutput
from apex_acer.config import AlgorithmConfig, RunConfig, require
from apex_acer.config.checks import positive
from apex_acer.functional import masked_means, shape_rewards, squared_error_loss
from apex_acer.networks.discrete import QNetwork
from apex_acer.networks.frames import stack_planes
from apex_acer.networks.network import State
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import Batch, Shapes


@dataclass(frozen=True)
class Settings(AlgorithmConfig):
    """`[algorithm]` of a run file: these keys beside `gamma`, `unroll_length`, `replay_ratio`, …"""

    actions = "Discrete"  # the environments that it is for; "Box": continuous actions

    temperature: float = 1.0
    """Of the softmax; the lower, the greedier."""

    def __post_init__(self) -> None:
        super().__post_init__()  # checks the types
        positive("algorithm", {"temperature": self.temperature})

    def require_fit(self, run: RunConfig) -> None:
        """Refuses a network with memory, whose state `act` does not keep."""
        require(run.network.lstm == 0, "network.lstm", run.network.lstm, f"{self.name} has no memory; give 0")


class ExpectedSarsa(Algorithm):
    """Q(o, a) ← r + gamma · Σ π(a') Q(o', a'), with π = softmax(Q / temperature)."""

    settings = Settings
    network: QNetwork

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None:
        self._settings, self._stack = given(config), spec.stack
        self.network = self.build_network(config, spec).to(device)
        self.modules = {"network": self.network}

    @staticmethod
    def build_network(config: RunConfig, spec: EnvironmentSpec) -> QNetwork:
        """Q on the torso that `[network]` describes."""
        return QNetwork(config.network, spec, is_dueling=False)

    @staticmethod
    def behaviour_shapes(config: RunConfig, spec: EnvironmentSpec) -> Shapes:
        """Nothing: the target averages over all actions, so it does not matter how likely the one taken was."""
        return {}

    @staticmethod
    def exploration(config: RunConfig, num: int, actor: int | None = None) -> Tensor:
        """The temperature of each environment, times that of its actor."""
        hotter = 1.0 if actor is None else config.actors.temperature(actor)
        return torch.full((num,), hotter * given(config).temperature)

    @staticmethod
    def act(
        network: nn.Module, obs: Tensor, state: State, *, greedy: bool, exploration: Tensor, generator: torch.Generator
    ) -> Action:
        """Samples from softmax(Q / temperature), or takes the action of the highest Q."""
        q = network(obs).q_values  # [N, A]
        if greedy:
            return Action(q.argmax(-1), {}, state)
        pi = (q / exploration.unsqueeze(-1)).softmax(-1)
        return Action(torch.multinomial(pi, 1, generator=generator).squeeze(-1), {}, state)

    @staticmethod
    def feeding(config: RunConfig) -> Feeding:
        """Whole segments: each once while it is fresh, and again from replay."""
        return Feeding(fresh=True)

    def loss(self, batch: Batch, updates: int) -> LossOutput:
        """½ (target − Q)², the mean over the steps that are no dummies."""
        settings, mask = self._settings, batch.mask
        obs = stack_planes(batch.obs, batch.episode_step, self._stack)  # [T+1, B, *obs]
        q = self.network(obs.flatten(0, 1)).q_values.unflatten(0, obs.shape[:2])  # [T+1, B, A]
        with torch.no_grad():
            pi = (q / settings.temperature).softmax(-1)
            value = (pi * q).sum(-1)  # [T+1, B]
            clip, penalty = settings.reward_clip, settings.terminal_penalty  # rewards are raw until here
            reward = shape_rewards(batch.reward, batch.terminated, clip=clip, penalty=penalty)
            target = reward + settings.gamma * value[1:] * ~batch.terminated  # [T, B]
        q_taken = q[:-1].gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)  # [T, B]
        loss, error = squared_error_loss(q_taken, target, batch.importance, mask)
        metrics = masked_means({"value": value[:-1]}, mask) | {"loss": loss.detach(), "q_loss": loss.detach()}
        return LossOutput(loss, metrics, error.abs().sum(0) / mask.sum(0).clamp(min=1), mask.sum())


def given(config: RunConfig) -> Settings:
    """The algorithm's settings in a run."""
    assert isinstance(config.algorithm, Settings)
    return config.algorithm
