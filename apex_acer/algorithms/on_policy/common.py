"""What algorithms share that learn from fresh segments only: policy and critic, advantages, and the loss of both."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator

import torch
from torch import Tensor, nn

from apex_acer.algorithms.algorithm import Action, Descent, Feeding, Group, LossOutput, trained
from apex_acer.algorithms.on_policy.settings import OnPolicyConfig, PolicyGradientConfig
from apex_acer.algorithms.segments import Segments
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
from apex_acer.networks.network import State, to_train
from apex_acer.networks.policy_heads import policy_head
from apex_acer.networks.policy_value import PolicyNetwork, ValueNetwork
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import Batch, Shapes, Unroll, columns, single_steps

ADVANTAGE, VALUE, VALUE_TARGET = "advantage", "value", "value_target"  # of each step, before the batch is learned from
INTRINSIC_REWARD = "intrinsic_reward"  # likewise, if there is curiosity
EPSILON = 1e-8  # added to the standard deviation of advantages


class OnPolicy(Segments):
    """A policy, and a critic: a head of V on an image's or a recurrent torso, otherwise a network of its own."""

    settings = OnPolicyConfig
    network: PolicyNetwork

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None:
        super().__init__(config, spec, device)
        self._on_policy, self._recurrent = settings(config), config.network.lstm > 0
        self._whole_episodes = self.feeding(config).whole_episodes
        self.critic = None if self.network.value else to_train(ValueNetwork(config.network, spec), config, device)
        if self.critic:
            self.modules["critic"] = self.critic

    @staticmethod
    def build_network(config: RunConfig, spec: EnvironmentSpec) -> PolicyNetwork:
        """A `PolicyNetwork`, whose output is `pi_logits`, or `mean` and `log_std` of a `Box`."""
        shares = spec.has_images or config.network.lstm > 0
        return PolicyNetwork(config.network, spec, settings(config).initial_std, with_value=shares)

    @staticmethod
    def behaviour_shapes(config: RunConfig, spec: EnvironmentSpec) -> Shapes:
        """What the policy's head records."""
        return policy_head(spec).behaviour_shapes(spec)

    @staticmethod
    def act(
        network: nn.Module, obs: Tensor, state: State, *, greedy: bool, exploration: Tensor, generator: torch.Generator
    ) -> Action:
        """Samples from the policy at the temperature `exploration`, or takes the likeliest action if `greedy`."""
        assert isinstance(network, PolicyNetwork)
        output, state = network.step(obs, state)
        policy = network.head.distribution(output, exploration)
        return Action(*network.head.sample(policy, generator, greedy=greedy), state)

    @staticmethod
    def feeding(config: RunConfig) -> Feeding:
        """Fresh segments, each in one batch."""
        return Feeding(fresh=True)

    def observe(self, unroll: Unroll, source: Hashable) -> None:
        """Updates the statistics of returns; those of observations, which the policy depends on, wait for the update."""
        self.observe_returns(unroll, source)

    def update(self, batch: Batch, descent: Descent) -> None:
        """Learns from the batch, and then adds its observations to the statistics.

        So π is computed under the statistics that the actions were chosen with: before the first step its ratio to a
        behaviour policy of the same version is 1. The new statistics travel to actors with the new version of the weights,
        and if no step was taken there is none.
        """
        self.learn(self.prepare(batch, descent), descent)
        if descent.metrics:
            self.network.observe(self._observed(batch))

    @abstractmethod
    def learn(self, batch: Batch, descent: Descent) -> None:
        """Takes the steps on a prepared batch."""

    def _observed(self, batch: Batch) -> Tensor:
        """The planes after each step, `[T, B, *plane]`; of whole episodes only those that were made, `[1, n, *plane]`."""
        planes = batch.obs[batch.stack :]
        return planes[batch.mask].unsqueeze(0) if self._whole_episodes else planes

    def prepare(self, batch: Batch, descent: Descent) -> Batch:
        """`batch` with the advantage and the critic's value and target of each step, under the policy as it is now."""
        with torch.no_grad():
            policy, value = self.evaluate(batch)
            found = self.advantages(batch, policy, value)
            advantage = found.advantage
            if self._on_policy.normalise_advantages:
                advantage = standardise(advantage, batch.mask, descent.add)
        targets = {ADVANTAGE: advantage, VALUE: value[:-1], VALUE_TARGET: found.value_target}
        return dataclasses.replace(batch, targets=batch.targets | targets)

    def advantages(self, batch: Batch, policy: Distribution, value: Tensor) -> Advantages:
        """Those of each step `[T, B]`, from the `policy` `[T+1, B]` and `value` `[T+1, B]` before the update."""
        return gae(
            reward=self.rewards(batch),
            value=value,
            terminated=batch.terminated,
            truncated=batch.truncated,
            mask=batch.mask,
            gamma=self._on_policy.gamma,
            gae_lambda=self._on_policy.gae_lambda,
        )

    def evaluate(self, batch: Batch, *, ahead: bool = True) -> tuple[Distribution, Tensor]:
        """The policy and V `[T+1, B]` of the observations, without the last one if not `ahead`."""
        obs, reset = self.inputs(batch, ahead=ahead)
        policy, value = self.network.judge(obs, reset, batch.state)
        if self.critic:
            value = self.critic(obs).view(reset.shape)
        assert value is not None
        return policy, value

    def minibatches(self, batch: Batch, num: int) -> Iterator[Batch]:
        """The batch in `num` random parts: of its steps without dummies, or of whole segments if the network has memory."""
        if self._recurrent:
            for part in torch.randperm(batch.mask.shape[1]).tensor_split(num):
                yield columns(batch, part.to(batch.mask.device))
            return
        steps = batch.mask.flatten().nonzero().squeeze(-1)
        for part in torch.randperm(len(steps)).tensor_split(num):
            yield single_steps(batch, steps[part.to(steps.device)])


class PolicyGradient(OnPolicy):
    """One loss of policy, critic, entropy and curiosity; algorithms differ in how the advantages count."""

    settings = PolicyGradientConfig

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None:
        super().__init__(config, spec, device)
        assert isinstance(config.algorithm, PolicyGradientConfig)
        self._costs = config.algorithm
        self.curiosity = to_train(Curiosity(config.network, spec), config, device) if self._costs.curiosity else None
        if self.curiosity:
            self.modules["curiosity"] = self.curiosity

    def groups(self) -> dict[str, Group]:
        """Curiosity has a group of its own, so that its gradient does not change how the policy's is clipped."""
        if not self.curiosity:
            return super().groups()
        others = [p for module in self.modules.values() if module is not self.curiosity for p in trained(module)]
        return {"network": Group(others), "curiosity": Group(trained(self.curiosity))}

    def prepare(self, batch: Batch, descent: Descent) -> Batch:
        """Also with what curiosity pays for each step, if there is any."""
        if self.curiosity:
            with torch.no_grad():
                errors = self.curiosity(self.inputs(batch).obs, batch.action)
            paid = intrinsic_reward(forward=errors.forward, mask=batch.mask, eta=self._costs.curiosity)
            batch = dataclasses.replace(batch, targets={INTRINSIC_REWARD: paid})
        return super().prepare(batch, descent)

    def rewards(self, batch: Batch) -> Tensor:
        """`[T, B]`, with what curiosity pays, if there is any."""
        return super().rewards(batch) + batch.targets.get(INTRINSIC_REWARD, 0.0)

    def loss(self, batch: Batch, updates: int) -> LossOutput:
        """The policy's, `value_cost` times the critic's, the entropy bonus and curiosity's, as means over unmasked steps."""
        policy, value = self.evaluate(batch, ahead=False)
        behaviour, action = self.network.head.recorded(batch.action, batch.behaviour)
        policy_loss, samples = self.policy_loss(batch, policy.log_prob(action), behaviour.log_prob(action))
        value_loss, entropy = self.value_loss(batch, value), policy.entropy()
        costs = policy_loss + self._costs.value_cost * value_loss - self._costs.entropy_cost * entropy  # [T, B]
        if self.curiosity:
            errors = self.curiosity(self.inputs(batch).obs, batch.action)
            costs = costs + curiosity_loss(forward=errors.forward, inverse=errors.inverse)
            samples |= {"forward_loss": errors.forward, "inverse_loss": errors.inverse}
            samples |= {INTRINSIC_REWARD: batch.targets[INTRINSIC_REWARD]}
        total = masked_mean(costs, batch.mask)
        samples |= {
            "loss": costs,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "value": value,
            "behaviour_kl": behaviour.kl(policy),
        }
        return LossOutput(
            total,
            masked_means(samples, batch.mask),
            batch.importance.new_zeros(len(batch.importance)),
            batch.mask.sum(),
        )

    @abstractmethod
    def policy_loss(
        self, batch: Batch, log_prob: Tensor, behaviour_log_prob: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """That of each step `[T, B]`, by the policy's and the behaviour's log-probability of its action; and metrics."""

    def value_loss(self, batch: Batch, value: Tensor) -> Tensor:
        """½ (target − V)² of each step, `[T, B]`."""
        return 0.5 * (batch.targets[VALUE_TARGET] - value).square()


def standardise(advantage: Tensor, mask: Tensor, add: Callable[[Tensor], None]) -> Tensor:
    """`advantage` `[T, B]` less its mean and divided by its standard deviation, those of the unmasked steps of all learners.

    `add` replaces a tensor by its sum over all learners. Masked steps are 0.
    """
    taken = torch.where(mask, advantage, 0.0).double()
    sums = torch.stack([mask.sum().double(), taken.sum(), taken.square().sum()])
    add(sums)
    count, total, squares = sums
    mean = total / count.clamp(min=1)
    std = (squares / count.clamp(min=1) - mean.square()).clamp(min=0).sqrt()
    return torch.where(mask, (taken - mean) / (std + EPSILON), 0.0).to(advantage.dtype)


def settings(config: RunConfig) -> OnPolicyConfig:
    """The `[algorithm]` section of an on-policy run."""
    assert isinstance(config.algorithm, OnPolicyConfig)
    return config.algorithm
