"""ACER: off-policy actor-critic with Retrace, truncated importance weights and a trust region (arXiv 1611.01224)."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping

import torch
from torch import Tensor, nn

from apex_acer.algorithms.algorithm import Action, Algorithm, Feeding, LossOutput
from apex_acer.config import AcerConfig, RunConfig
from apex_acer.functional import acer_loss, shape_rewards
from apex_acer.networks.frames import stack_planes
from apex_acer.networks.normalisation import RewardScale
from apex_acer.networks.torsos import ActorCritic, State, to_train
from apex_acer.networks.weights import load_tensors, named_tensors
from apex_acer.protocol.trajectory import Array, Batch, EnvironmentSpec, Shapes, Unroll

MU = "log_probs"  # the behaviour policy's only part


class Acer(Algorithm):
    """A network with policy and Q heads, and its average, which the trust region holds it to."""

    settings = AcerConfig
    network: ActorCritic

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None:
        self._config = settings(config)
        self._stack, self._device = spec.stack, device
        self.network = to_train(self.build_network(config, spec), config, device)
        self._reward_scale = RewardScale().to(device) if self._config.normalise_rewards else None
        self.average_network = copy.deepcopy(self.network).requires_grad_(False)

    @staticmethod
    def build_network(config: RunConfig, spec: EnvironmentSpec) -> ActorCritic:
        """An `ActorCritic`, whose output is `pi_logits` and `q_values`."""
        return ActorCritic(config.network, spec)

    @staticmethod
    def behaviour_shapes(config: RunConfig, spec: EnvironmentSpec) -> Shapes:
        """Log-probabilities of every action."""
        return {MU: (spec.num_actions,)}

    @staticmethod
    def state_shapes(config: RunConfig) -> Shapes:
        """An LSTM's hidden and cell state."""
        return {"hidden": (config.network.lstm,), "cell": (config.network.lstm,)} if config.network.lstm else {}

    @staticmethod
    def exploration(config: RunConfig, num: int, actor: int | None = None) -> Tensor:
        """Softmax temperatures: the actor's, 1 in evaluations."""
        return torch.full((num,), 1.0 if actor is None else config.actors.temperature(actor))

    @staticmethod
    def act(
        network: nn.Module, obs: Tensor, state: State, *, greedy: bool, exploration: Tensor, generator: torch.Generator
    ) -> Action:
        """Samples from softmax(pi_logits / exploration); mu is what was sampled from. `greedy` takes the likeliest."""
        assert isinstance(network, ActorCritic)
        output, state = network.step(obs, state)
        log_mu = (output.pi_logits.float() / exploration.unsqueeze(-1)).log_softmax(-1)  # [N, A]
        if greedy:
            action = log_mu.argmax(-1)
        else:
            action = torch.multinomial(log_mu.exp(), 1, generator=generator).squeeze(-1)
        return Action(action, {MU: log_mu}, state)

    @staticmethod
    def feeding(config: RunConfig) -> Feeding:
        """Whole segments, each fresh once and worth Poisson(replay ratio) as much replay, as in the paper."""
        return Feeding(fresh=True, draw="poisson")

    def observe(self, unroll: Unroll, source: Hashable) -> None:
        """Keeps the statistics of observations and returns, where the configuration asks for them."""
        self.network.observe(unroll)
        if self._reward_scale:
            terminated = self._on_device(unroll.terminated)
            reward = self._shape(self._on_device(unroll.reward), terminated)
            ended = terminated | self._on_device(unroll.truncated)
            mask = self._on_device(unroll.mask)
            begins = self._on_device(unroll.episode_step[self._stack - 1] == 0)
            self._reward_scale.observe(reward, ended, mask, begins, self._config.gamma, source)

    def statistics(self) -> list[Tensor]:
        """Those of observations and returns."""
        return [*self.network.buffers(), *(self._reward_scale.buffers() if self._reward_scale else ())]

    def loss(self, batch: Batch) -> LossOutput:
        """The loss of `functional.acer_loss` on one batch of segments."""
        settings = self._config
        obs = stack_planes(batch.obs, batch.episode_step, self._stack)  # [T+1, B, *obs]
        reset = batch.episode_step[self._stack - 1 :] == 0  # [T+1, B]
        with torch.no_grad():  # once for both networks: their statistics are the same
            inputs = self.network.prepare(obs.flatten(0, 1))
        output = self.network.unroll(inputs, reset, batch.state, settings.burn_in, batch.fresh)
        with torch.no_grad():
            average_logits = self.average_network.unroll(inputs[: -reset.shape[1]], reset[:-1], batch.state).pi_logits
        mask = self._learned(batch)
        reward = self._shape(batch.reward, batch.terminated)
        loss = acer_loss(
            pi_logits=output.pi_logits,
            q_values=output.q_values,
            average_logits=average_logits,
            mu_log_probs=batch.behaviour[MU],
            action=batch.action,
            reward=self._reward_scale(reward) if self._reward_scale else reward,
            terminated=batch.terminated,
            mask=mask,
            importance=batch.importance,
            gamma=settings.gamma,
            truncation_threshold=settings.truncation_threshold,
            trust_region_delta=settings.trust_region_delta,
            entropy_cost=settings.entropy_cost,
            q_cost=settings.q_cost,
        )
        priorities = loss.td_error.sum(0) / mask.sum(0).clamp(min=1)
        return LossOutput(loss.total, loss.metrics, priorities, mask.sum())

    def _on_device(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def _shape(self, reward: Tensor, terminated: Tensor) -> Tensor:
        clip, penalty = self._config.reward_clip, self._config.terminal_penalty
        return shape_rewards(reward, terminated, clip=clip, penalty=penalty)

    def _learned(self, batch: Batch) -> Tensor:
        """The mask without a replayed segment's burn-in, `[T, B]`."""
        burn_in, mask = self._config.burn_in, batch.mask
        if not (burn_in and self.network.lstm):
            return mask
        late = torch.arange(len(mask), device=mask.device) >= burn_in
        return mask & (late.unsqueeze(-1) | batch.fresh)

    def after_step(self, metrics: Mapping[str, Tensor]) -> None:
        """θ_a ← α θ_a + (1 − α) θ, buffers copied."""
        with torch.no_grad():
            average: list[Tensor] = list(self.average_network.parameters())
            newest: list[Tensor] = list(self.network.parameters())
            torch._foreach_lerp_(average, newest, 1 - self._config.ema_decay)
            for old, new in zip(self.average_network.buffers(), self.network.buffers(), strict=True):
                old.copy_(new)

    def tensors(self) -> dict[str, Tensor]:
        """The network, its average, and the scale of rewards, if it is kept."""
        tensors = named_tensors(self.network, "network") | named_tensors(self.average_network, "average")
        if self._reward_scale:
            tensors |= named_tensors(self._reward_scale, "rewards")
        return tensors

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Both networks; the average restarts at the network where a file holds only that."""
        load_tensors(self.network, "network", tensors)
        has_average = any(name.startswith("average.") for name in tensors)
        source = tensors if has_average else named_tensors(self.network, "average")
        load_tensors(self.average_network, "average", source)
        if self._reward_scale and any(name.startswith("rewards.") for name in tensors):
            load_tensors(self._reward_scale, "rewards", tensors)


def settings(config: RunConfig) -> AcerConfig:
    """The algorithm's section of a run of this algorithm."""
    assert isinstance(config.algorithm, AcerConfig)
    return config.algorithm
