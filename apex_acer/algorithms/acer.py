"""ACER: off-policy actor-critic with Retrace, truncated importance weights and a trust region (arXiv 1611.01224)."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from apex_acer.algorithms.algorithm import Action, Algorithm, LossOutput, State
from apex_acer.config import RunConfig
from apex_acer.frames import stack_planes
from apex_acer.functional import acer_loss
from apex_acer.networks import ActorCritic
from apex_acer.trajectory import Batch, EnvironmentSpec
from apex_acer.weights import load_tensors, named_tensors

MU = "log_probs"  # the behaviour policy's only part


class Acer(Algorithm):
    """A network with policy and Q heads, and its average, which the trust region holds it to."""

    fresh = True
    network: ActorCritic

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None:
        self._config = config.algorithm
        self._stack = spec.stack
        # channels last: a third faster to train on a CPU
        self.network = self.build_network(config, spec).to(device)
        self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.average_network = copy.deepcopy(self.network).requires_grad_(False)

    @staticmethod
    def build_network(config: RunConfig, spec: EnvironmentSpec) -> ActorCritic:
        """An `ActorCritic`, whose output is `pi_logits` and `q_values`."""
        return ActorCritic(config.network, spec)

    @staticmethod
    def behaviour_shapes(spec: EnvironmentSpec) -> dict[str, tuple[int, ...]]:
        """Log-probabilities of every action."""
        return {MU: (spec.num_actions,)}

    @staticmethod
    def act(
        network: nn.Module, obs: Tensor, state: State, *, greedy: bool, exploration: float, generator: torch.Generator
    ) -> Action:
        """Samples from softmax(pi_logits / temperature); mu is what was sampled from. `greedy` takes the likeliest."""
        log_mu = (network(obs).pi_logits.float() / exploration).log_softmax(-1)  # [N, A]
        if greedy:
            action = log_mu.argmax(-1)
        else:
            action = torch.multinomial(log_mu.exp(), 1, generator=generator).squeeze(-1)
        return Action(action, {MU: log_mu}, state)

    def loss(self, batch: Batch) -> LossOutput:
        """The loss of `functional.acer_loss` on one batch of segments."""
        obs = stack_planes(batch.obs, batch.episode_step, self._stack)  # [T+1, B, *obs]
        length, columns = obs.shape[:2]
        flat = obs.flatten(0, 1)
        output = self.network(flat)
        with torch.no_grad():
            average_logits = self.average_network(flat[:-columns]).pi_logits
        settings = self._config
        clip = settings.reward_clip
        loss = acer_loss(
            pi_logits=output.pi_logits.view(length, columns, -1),
            q_values=output.q_values.view(length, columns, -1),
            average_logits=average_logits.view(length - 1, columns, -1),
            mu_log_probs=batch.behaviour[MU],
            action=batch.action,
            reward=batch.reward.clamp(-clip, clip) if clip else batch.reward,
            terminated=batch.terminated,
            mask=batch.mask,
            gamma=settings.gamma,
            truncation_threshold=settings.truncation_threshold,
            trust_region_delta=settings.trust_region_delta,
            trust_region_space=settings.trust_region_space,
            entropy_cost=settings.entropy_cost,
            q_cost=settings.q_cost,
        )
        priorities = loss.td_error.sum(0) / batch.mask.sum(0).clamp(min=1)
        return LossOutput(loss.total, loss.metrics, priorities)

    def after_step(self) -> None:
        """θ_a ← α θ_a + (1 − α) θ, buffers copied."""
        with torch.no_grad():
            average: list[Tensor] = list(self.average_network.parameters())
            newest: list[Tensor] = list(self.network.parameters())
            torch._foreach_lerp_(average, newest, 1 - self._config.ema_decay)
            for old, new in zip(self.average_network.buffers(), self.network.buffers(), strict=True):
                old.copy_(new)

    def tensors(self) -> dict[str, Tensor]:
        """The network and its average."""
        return named_tensors(self.network, "network") | named_tensors(self.average_network, "average")

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Both networks; the average restarts at the network where a file holds only that."""
        load_tensors(self.network, "network", tensors)
        has_average = any(name.startswith("average.") for name in tensors)
        source = tensors if has_average else named_tensors(self.network, "average")
        load_tensors(self.average_network, "average", source)
