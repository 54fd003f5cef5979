"""The parts that on-policy algorithms share: policy and critic, advantages, minibatches, and the loss of both."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from apex_acer.algorithms.algorithm import Action, Agent, Algorithm, Descent, Group, LossOutput, trainable
from apex_acer.algorithms.on_policy.settings import OnPolicyConfig, PolicyGradientConfig
from apex_acer.algorithms.samples import Sequences, flat, with_prepared, without_last
from apex_acer.config import RunConfig
from apex_acer.functional import (
    Advantages,
    Distribution,
    curiosity_loss,
    gae,
    intrinsic_reward,
    masked_mean,
    masked_means,
)
from apex_acer.networks.curiosity import Curiosity
from apex_acer.networks.memory import lstm_shapes
from apex_acer.networks.network import State, to_train
from apex_acer.networks.policies import PolicyNetwork, ValueNetwork
from apex_acer.protocol.specification import EnvironmentSpec

ADVANTAGE, VALUE, VALUE_TARGET = "advantage", "value", "value_target"  # in `Sequences.targets`
INTRINSIC_REWARD = "intrinsic_reward"  # in `Sequences.targets`, with curiosity
EPSILON = 1e-8  # added to the standard deviation of advantages


class PolicyAgent(Agent):
    """Samples from a policy, and records its distribution."""

    settings: OnPolicyConfig
    network: PolicyNetwork

    def __init__(self, config: RunConfig, spec: EnvironmentSpec) -> None:
        super().__init__(config, spec)
        has_value = self.settings.shares_torso and (spec.has_images or config.network.lstm > 0)
        self.network = PolicyNetwork(config.network, spec, self.settings.initial_std, with_value=has_value)
        self.extras = self.network.head.extras
        self.state = lstm_shapes(config.network.lstm)

    def act(
        self, obs: Tensor, state: State, *, greedy: bool, exploration: Tensor, generator: torch.Generator, updates: int
    ) -> Action:
        """Samples from the policy at the temperature `exploration`, or takes the likeliest action if `greedy`."""
        output, state = self.network.step(obs, state)
        policy = self.network.head.distribution(output, exploration)
        return Action(*self.network.head.sample(policy, generator, greedy=greedy), state)


class OnPolicy(Algorithm):
    """A policy and a critic, which is a head on the policy's torso of images or memory, otherwise a network of its own."""

    agent_class = PolicyAgent
    settings: OnPolicyConfig
    network: PolicyNetwork

    def __init__(self, agent: Agent, device: torch.device) -> None:
        super().__init__(agent, device)
        config = agent.config
        self.curiosity: Curiosity | None = None
        self.critic = None
        if not self.network.value:
            self.critic = to_train(ValueNetwork(config.network, agent.spec), config, device)
            self.modules["critic"] = self.critic

    def update(self, samples: Sequences, descent: Descent) -> None:
        """Takes one optimizer step on the batch with its advantages."""
        descent.step(self.prepare(samples, descent))

    def prepare(self, samples: Sequences, descent: Descent) -> Sequences:
        """`samples` with each step's advantage, V and target of V as `targets`, computed before the update.

        Observations are `prepare`d, and without curiosity the last ones are left out.
        """
        with torch.no_grad():
            samples = self.with_curiosity(with_prepared(self.network, samples))
            policy, value = self.evaluate(samples)
            advantage, value_target = self.advantages(samples, policy, value)
            if self.settings.normalise_advantages:
                advantage = standardise(advantage, samples.mask, descent.add)
        targets = {ADVANTAGE: advantage, VALUE: value[:-1], VALUE_TARGET: value_target}
        samples = dataclasses.replace(samples, targets=samples.targets | targets)
        return samples if self.curiosity else without_last(samples)

    def with_curiosity(self, samples: Sequences) -> Sequences:
        """`samples` with the intrinsic reward, if there is curiosity, in `reward` and as one of `targets`."""
        return samples

    def advantages(self, samples: Sequences, policy: Distribution, value: Tensor) -> Advantages:
        """Advantages `[T, B]` from `policy` and `value` `[T+1, B]`, by GAE."""
        return gae(
            reward=samples.reward,
            value=value,
            terminated=samples.terminated,
            truncated=samples.last,
            mask=samples.mask,
            gamma=self.settings.gamma,
            gae_lambda=self.settings.gae_lambda,
        )

    def evaluate(self, samples: Sequences) -> tuple[Distribution, Tensor]:
        """The policy and V `[L, B]` of `prepare`d observations `[L, B, *input]`."""
        obs, first = flat(samples.obs), samples.first
        policy, value = self.network.evaluate(obs, first, samples.state)
        if self.critic:
            value = self.critic(obs).view(first.shape)
        assert value is not None
        return policy, value


class PolicyGradient(OnPolicy):
    """One loss of policy, critic, entropy and curiosity; subclasses have the `policy_loss`."""

    settings: PolicyGradientConfig

    def __init__(self, agent: Agent, device: torch.device) -> None:
        super().__init__(agent, device)
        config = agent.config
        if self.settings.curiosity:
            self.curiosity = to_train(Curiosity(config.network, agent.spec), config, device)
            self.modules["curiosity"] = self.curiosity

    def groups(self) -> dict[str, Group]:
        """Curiosity's gradient is clipped apart from the policy's."""
        if not self.curiosity:
            return super().groups()
        others = [p for module in self.modules.values() if module is not self.curiosity for p in trainable(module)]
        return {"network": Group(others), "curiosity": Group(trainable(self.curiosity))}

    def with_curiosity(self, samples: Sequences) -> Sequences:
        if not self.curiosity:
            return samples
        with torch.no_grad():
            forward, _ = self.curiosity_errors(samples)
        reward = intrinsic_reward(forward=forward, mask=samples.mask, eta=self.settings.curiosity)
        targets = samples.targets | {INTRINSIC_REWARD: reward}
        return dataclasses.replace(samples, reward=samples.reward + reward, targets=targets)

    def curiosity_errors(self, samples: Sequences) -> tuple[Tensor, Tensor]:
        """Forward and inverse error of each step, `[T, B]`; 0 if another episode's observation follows."""
        assert self.curiosity
        forward, inverse = self.curiosity(flat(samples.obs), samples.action)
        return torch.where(samples.stays, forward, 0.0), torch.where(samples.stays, inverse, 0.0)

    def loss(self, samples: Sequences) -> LossOutput:
        """The sum of policy loss, weighted value loss and entropy bonus, and curiosity's loss: means over unmasked steps."""
        settings, mask = self.settings, samples.mask
        policy, value = self.evaluate(without_last(samples) if self.curiosity else samples)
        behaviour, action = self.network.head.recorded(samples.action, samples.extras)
        policy_loss, means = self.policy_loss(samples, policy.log_prob(action), behaviour.log_prob(action))
        value_loss, entropy = self.value_loss(samples, value), policy.entropy()
        costs = policy_loss + settings.value_cost * value_loss - settings.entropy_cost * entropy  # [T, B]
        if self.curiosity:
            forward, inverse = self.curiosity_errors(samples)
            costs = costs + curiosity_loss(forward=forward, inverse=inverse)
            means |= {"forward_loss": forward, "inverse_loss": inverse}
            means |= {INTRINSIC_REWARD: samples.targets[INTRINSIC_REWARD]}
        means |= {
            "loss": costs,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "value": value,
            "behaviour_kl": behaviour.kl(policy),
        }
        unused = torch.zeros_like(samples.importance)
        return LossOutput(masked_mean(costs, mask), masked_means(means, mask), unused, mask.sum())

    @abstractmethod
    def policy_loss(
        self, samples: Sequences, log_prob: Tensor, behaviour_log_prob: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Policy loss per step `[T, B]` and metrics, from the log-probabilities `[T, B]` of the action."""

    def value_loss(self, samples: Sequences, value: Tensor) -> Tensor:
        """Value loss ½ (target − V)² per step, `[T, B]`."""
        return 0.5 * (samples.targets[VALUE_TARGET] - value).square()


def minibatches(samples: Sequences, num: int) -> Iterator[Sequences]:
    """Random parts of the batch, `num` in all: of its unmasked steps, or of sequences if they have a recurrent state."""
    mask = samples.mask
    if samples.state:
        for part in torch.randperm(mask.shape[1]).tensor_split(num):
            yield samples.select(part.to(mask.device))
        return
    steps = mask.flatten().nonzero().squeeze(-1)
    for part in torch.randperm(len(steps)).tensor_split(num):
        yield samples.steps(steps[part.to(steps.device)])


def standardise(advantage: Tensor, mask: Tensor, add: Callable[[Tensor], None]) -> Tensor:
    """`advantage` `[T, B]` with a mean of 0 and a standard deviation of 1 over the unmasked steps of all learners.

    `add` replaces a tensor by its sum over all learners. Masked steps are 0.
    """
    unmasked = torch.where(mask, advantage, 0.0).double()
    sums = torch.stack([mask.sum().double(), unmasked.sum(), unmasked.square().sum()])
    add(sums)
    count, total, squares = sums
    mean = total / count.clamp(min=1)
    std = (squares / count.clamp(min=1) - mean.square()).clamp(min=0).sqrt()
    return torch.where(mask, (unmasked - mean) / (std + EPSILON), 0.0).to(advantage.dtype)
