"""ACER: off-policy actor-critic with Retrace, truncated importance weights and a trust region (arXiv 1611.01224)."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping

import torch
from torch import Tensor, nn

from apex_acer.algorithms.algorithm import Action, Algorithm, Feeding, LossOutput
from apex_acer.config import AcerConfig, RunConfig
from apex_acer.functional import (
    acer_metrics,
    acer_policy_gradient,
    acer_targets,
    kl_gradient,
    shape_rewards,
    squared_error_loss,
    surrogate_loss,
    trust_region_projection,
)
from apex_acer.networks.frames import stack_planes
from apex_acer.networks.normalisation import RewardScale
from apex_acer.networks.torsos import ActorCritic, ActorCriticOutput, State, to_train
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import Batch, Shapes, Unroll

MU = "log_probs"  # the behaviour policy's only part


class Acer(Algorithm):
    """A network with policy and Q heads, and the average network to which the trust region keeps it close."""

    settings = AcerConfig
    network: ActorCritic

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None:
        assert isinstance(config.algorithm, AcerConfig)
        self._config, self._stack, self._device = config.algorithm, spec.stack, device
        self.network = to_train(self.build_network(config, spec), config, device)
        self._reward_scale = RewardScale().to(device) if self._config.normalise_rewards else None
        self.average_network = copy.deepcopy(self.network).requires_grad_(False)
        self.modules = {"network": self.network, "average": self.average_network}
        if self._reward_scale:
            self.modules["rewards"] = self._reward_scale

    @staticmethod
    def build_network(config: RunConfig, spec: EnvironmentSpec) -> ActorCritic:
        """An `ActorCritic`, whose output is `pi_logits` and `q_values`."""
        return ActorCritic(config.network, spec)

    @staticmethod
    def behaviour_shapes(config: RunConfig, spec: EnvironmentSpec) -> Shapes:
        """The log-probabilities of all actions."""
        return {MU: (spec.num_actions,)}

    @staticmethod
    def state_shapes(config: RunConfig, spec: EnvironmentSpec) -> Shapes:
        """The hidden and cell state of the LSTM, if there is one."""
        return {"hidden": (config.network.lstm,), "cell": (config.network.lstm,)} if config.network.lstm else {}

    @staticmethod
    def exploration(config: RunConfig, num: int, actor: int | None = None) -> Tensor:
        """Softmax temperatures `[num]`: the actor's, or 1 in evaluations."""
        return torch.full((num,), 1.0 if actor is None else config.actors.temperature(actor))

    @staticmethod
    def act(
        network: nn.Module, obs: Tensor, state: State, *, greedy: bool, exploration: Tensor, generator: torch.Generator
    ) -> Action:
        """Samples from mu = softmax(pi_logits / exploration), or takes its likeliest action if `greedy`."""
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
        """Whole segments: each is trained on once as it arrives, and is worth Poisson(replay ratio) replays."""
        return Feeding(fresh=True, draw="poisson")

    def observe(self, unroll: Unroll, source: Hashable) -> None:
        """Updates the statistics of observations and returns, if the configuration asks for them."""
        self.network.observe(unroll)
        if self._reward_scale:
            at_start = unroll.episode_step[self._stack - 1] == 0
            arrays = (unroll.reward, unroll.terminated, unroll.truncated, unroll.mask, at_start)
            reward, terminated, truncated, mask, begins = (torch.from_numpy(a).to(self._device) for a in arrays)
            shaped, ended = self._shape(reward, terminated), terminated | truncated
            self._reward_scale.observe(shaped, ended, mask, begins, self._config.gamma, source)

    def statistics(self) -> list[Tensor]:
        """The statistics of observations and returns."""
        return [*self.network.buffers(), *(self._reward_scale.buffers() if self._reward_scale else ())]

    def loss(self, batch: Batch, updates: int) -> LossOutput:
        """`acer_loss` of a batch of segments."""
        output, average_logits = self._outputs(batch)
        reward = self._shape(batch.reward, batch.terminated)
        if self._reward_scale:
            reward = self._reward_scale(reward)
        return acer_loss(self._config, batch, output, average_logits, reward, self._learned(batch))

    def _outputs(self, batch: Batch) -> tuple[ActorCriticOutput, Tensor]:
        """The network's outputs `[T+1, B, A]` and the average network's logits `[T, B, A]`."""
        obs = stack_planes(batch.obs, batch.episode_step, self._stack)  # [T+1, B, *obs]
        reset = batch.episode_step[self._stack - 1 :] == 0  # [T+1, B]
        with torch.no_grad():  # once for both networks: their statistics are the same
            inputs = self.network.prepare(obs.flatten(0, 1))
        output = self.network.unroll(inputs, reset, batch.state, self._config.burn_in, batch.fresh)
        with torch.no_grad():
            average = self.average_network.unroll(inputs[: -reset.shape[1]], reset[:-1], batch.state)
        return output, average.pi_logits

    def _shape(self, reward: Tensor, terminated: Tensor) -> Tensor:
        clip, penalty = self._config.reward_clip, self._config.terminal_penalty
        return shape_rewards(reward, terminated, clip=clip, penalty=penalty)

    def _learned(self, batch: Batch) -> Tensor:
        """The mask without the burn-in of replayed segments, `[T, B]`."""
        burn_in, mask = self._config.burn_in, batch.mask
        if not (burn_in and self.network.lstm):
            return mask
        late = torch.arange(len(mask), device=mask.device) >= burn_in
        return mask & (late.unsqueeze(-1) | batch.fresh)

    def after_step(self, metrics: Mapping[str, Tensor], updates: int) -> None:
        """Moves the average network: θ_a ← α θ_a + (1 − α) θ; its buffers are copied."""
        with torch.no_grad():
            average: list[Tensor] = list(self.average_network.parameters())
            newest: list[Tensor] = list(self.network.parameters())
            torch._foreach_lerp_(average, newest, 1 - self._config.ema_decay)
            for old, new in zip(self.average_network.buffers(), self.network.buffers(), strict=True):
                old.copy_(new)


def acer_loss(
    given: AcerConfig, batch: Batch, output: ActorCriticOutput, average_logits: Tensor, reward: Tensor, mask: Tensor
) -> LossOutput:
    """ACER's loss of a batch, averaged over its unmasked steps after the trust region's projection.

    Args:
        given: the algorithm's settings.
        batch: the batch; its rewards and mask are not used.
        output: the network's outputs `[T+1, B, A]`, with gradient; the last row is only bootstrapped from.
        average_logits: `[T, B, A]` logits of the average policy.
        reward: `[T, B]` shaped and scaled rewards.
        mask: `[T, B]` bool, false on steps that are not learned from.
    """
    mu, action = batch.behaviour[MU], batch.action
    targets = acer_targets(
        pi_logits=output.pi_logits,
        q_values=output.q_values,
        mu_log_probs=mu,
        action=action,
        reward=reward,
        terminated=batch.terminated,
        mask=mask,
        gamma=given.gamma,
    )
    q_values, log_average = output.q_values[:-1], average_logits.log_softmax(-1)
    q_taken = q_values.gather(-1, action.unsqueeze(-1)).squeeze(-1)  # [T, B]
    gradient = acer_policy_gradient(
        pi_logits=output.pi_logits[:-1],
        mu_log_probs=mu,
        action=action,
        q_values=q_values,
        q_ret=targets.q_ret,
        truncation_threshold=given.truncation_threshold,
        entropy_cost=given.entropy_cost,
    )
    z = trust_region_projection(gradient, *kl_gradient(targets.log_pi, log_average, given.trust_region_delta))
    policy_loss = surrogate_loss(output.pi_logits[:-1].softmax(-1), z, batch.importance, mask)
    q_loss, error = squared_error_loss(q_taken, targets.q_ret, batch.importance, mask)
    total = policy_loss + given.q_cost * q_loss
    metrics = acer_metrics(targets, log_average, (z != gradient).any(-1), mask, given.truncation_threshold)
    metrics |= {"loss": total.detach(), "policy_loss": policy_loss.detach(), "q_loss": q_loss.detach()}
    priorities = error.abs().sum(0) / mask.sum(0).clamp(min=1)
    return LossOutput(total, metrics, priorities, mask.sum())
