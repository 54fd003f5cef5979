"""UNREAL: actor-critic with auxiliary losses on replayed sequences (Jaderberg et al. 2017, arXiv 1611.05397)."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from apex_acer.algorithms.algorithm import Agent, Descent, LossOutput
from apex_acer.algorithms.on_policy.common import ADVANTAGE, VALUE, VALUE_TARGET, PolicyGradient
from apex_acer.algorithms.samples import Sequences, flat, with_prepared
from apex_acer.algorithms.unreal.settings import UnrealConfig
from apex_acer.functional import (
    NUM_CLASSES,
    forbid,
    is_legal,
    masked_mean,
    masked_means,
    pixel_change,
    q_lambda_target,
    recent,
    reward_class,
    skewed_weights,
)
from apex_acer.networks.auxiliary import PixelControl
from apex_acer.networks.frames import newest_images
from apex_acer.networks.images import cells_of, first_image
from apex_acer.networks.torsos import head

PIXEL_GAMMA = 0.9  # discount of pixel control
NUM_FRAMES, UNITS = 3, 128  # observations that reward prediction sees, and units of its hidden layer
REWARD_CLASS, WEIGHT, CHANGE = "reward_class", "reward_weight", "pixel_change"  # in `targets` of a replayed batch

Costs = tuple[Tensor, dict[str, Tensor]]
"""A loss per step `[T, B]`, and metrics per step by name."""


class Unreal(PolicyGradient):
    """Actor-critic that takes a step on each fresh batch, and on replayed batches for the auxiliary losses alone."""

    settings_class = UnrealConfig
    settings: UnrealConfig

    def __init__(self, agent: Agent, device: torch.device) -> None:
        super().__init__(agent, device)
        spec, network, settings = agent.spec, self.network, self.settings
        self.auxiliary = nn.ModuleDict()
        if settings.pixel_control:
            self.cells = cells_of(*first_image(spec)[1].plane_shape[1:])
            self.auxiliary["pixel_control"] = PixelControl(network.width, spec.num_actions, *self.cells[1:])
        if settings.reward_prediction:
            width = network.lstm.input_size if network.lstm else network.width  # of the torso
            self.auxiliary["reward_prediction"] = head(agent.config.network, NUM_FRAMES * width, UNITS, NUM_CLASSES)
        self.modules["auxiliary"] = self.auxiliary.to(device)

    def prepare(self, samples: Sequences, descent: Descent) -> Sequences:
        """Fresh `samples` with advantages and targets of V, replayed ones with changes of pixels and classes of rewards."""
        if samples.fresh.any():
            return super().prepare(samples, descent)
        classes, mask = reward_class(samples.reward), samples.mask
        _, is_known = recent(samples.reward.unsqueeze(-1), samples.first[:-1], NUM_FRAMES)
        # computed from the whole batch, whose parts may be differentiated apart; so the loss is a mean over unmasked steps
        weight = skewed_weights(classes, mask & is_known, samples.importance) * mask.sum()
        targets = {REWARD_CLASS: classes, WEIGHT: weight}
        if self.settings.pixel_control:
            targets[CHANGE] = pixel_change(newest_images(samples.obs, self.agent.spec), *self.cells)
        return self.with_curiosity(dataclasses.replace(with_prepared(self.network, samples), targets=targets))

    def loss(self, samples: Sequences) -> LossOutput:
        """Actor-critic's loss of fresh sequences, or the weighted sum of the auxiliary losses of replayed ones."""
        if ADVANTAGE not in samples.targets:
            return self.auxiliary_loss(samples)
        error = samples.targets[VALUE_TARGET] - samples.targets[VALUE]
        return super().loss(samples)._replace(priorities=masked_mean(error.abs(), samples.mask, 0))

    def policy_loss(self, samples: Sequences, log_prob: Tensor, behaviour_log_prob: Tensor) -> Costs:
        """Policy loss −A log π(a) per step, `[T, B]`."""
        return -samples.targets[ADVANTAGE] * log_prob, {}

    def auxiliary_loss(self, samples: Sequences) -> LossOutput:
        """Value replay, pixel control and reward prediction: means over unmasked steps."""
        settings, mask, first = self.settings, samples.mask, samples.first
        obs = flat(samples.obs)
        encoded = self.network.features(obs)
        features = self.network.unroll_memory(self.network.lstm, encoded, first, samples.state)  # [T+1, B, F]
        critic = self.critic or self.network.value
        assert critic is not None
        value: Tensor = critic(obs if self.critic else features).view(first.shape)
        target = self.returns(samples, samples.reward, value.unsqueeze(-1), settings.gamma, settings.gae_lambda)
        error = target - value[:-1]
        losses: dict[str, Costs] = {"value_replay": (0.5 * samples.importance * error.square(), {})}
        if settings.pixel_control:
            losses["pixel_control"] = self.pixel_control_loss(samples, obs, features)
        if settings.reward_prediction:
            losses["reward_prediction"] = self.reward_prediction_loss(samples, encoded.view(*first.shape, -1))
        costs = torch.stack([getattr(settings, name) * loss for name, (loss, _) in losses.items()]).sum(0)
        means = {f"{name}_loss": loss for name, (loss, _) in losses.items()}
        means |= {"loss": costs} | {name: metric for _, metrics in losses.values() for name, metric in metrics.items()}
        priorities = masked_mean(error.detach().abs(), mask, 0)
        return LossOutput(masked_mean(costs, mask), masked_means(means, mask), priorities, mask.sum())

    def pixel_control_loss(self, samples: Sequences, obs: Tensor, features: Tensor) -> Costs:
        """The Q loss ½ (target − Q)² of n-step targets, summed over cells.

        `obs` are the `prepare`d observations, `features` `[T+1, B, F]` the network's.
        """
        q_values = self.auxiliary["pixel_control"](features)  # [T+1, B, rows, columns, A]
        change = samples.targets[CHANGE].to(q_values.dtype)
        change = torch.where(samples.stays[..., None, None], change, 0.0)
        combinations = q_values.new_zeros(len(obs), q_values.shape[-1])
        legal = is_legal(self.network.forbid_combinations(combinations, obs)).view(*samples.first.shape, 1, 1, -1)
        target = self.returns(samples, change, forbid(q_values, legal), PIXEL_GAMMA)
        action = samples.action[..., None, None, None].expand(*change.shape, 1)
        error = target - q_values[:-1].gather(-1, action).squeeze(-1)
        loss = 0.5 * samples.importance * error.square().sum((2, 3))
        return loss, {"pixel_change": change.mean((2, 3))}

    def reward_prediction_loss(self, samples: Sequences, encoded: Tensor) -> Costs:
        """The weighted cross-entropy of each reward's class, given the torso's features `encoded` `[T+1, B, F]`."""
        newest, _ = recent(encoded[:-1], samples.first[:-1], NUM_FRAMES)
        logits, classes = self.auxiliary["reward_prediction"](newest), samples.targets[REWARD_CLASS]
        loss = cross_entropy(logits.flatten(0, 1), classes.flatten(), reduction="none").view(classes.shape)
        weight = samples.targets[WEIGHT].to(loss.dtype)
        return weight * loss, {"reward_accuracy": weight * (logits.argmax(-1) == classes)}

    @staticmethod
    def returns(samples: Sequences, reward: Tensor, q_values: Tensor, gamma: float, q_lambda: float = 1.0) -> Tensor:
        """Q(λ) targets of `reward` `[T, B, …]` and `q_values` `[T+1, B, …, A]`, `[T, B, …]`, without gradient.

        With λ = 1 they are n-step returns up to the end of the episode or of the sequence.
        """

        def each(flag: Tensor) -> Tensor:
            return flag.view(*flag.shape, *[1] * (reward.ndim - 2)).expand_as(reward)

        flags = {"terminated": each(samples.terminated), "truncated": each(samples.last), "mask": each(samples.mask)}
        return q_lambda_target(reward=reward, q_values=q_values.detach(), **flags, gamma=gamma, q_lambda=q_lambda)
