"""ACER for continuous actions: a Gaussian policy, a stochastic dueling network, Retrace and a trust region on the mean.

arXiv 1611.01224, section 5 and appendix.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from apex_acer.algorithms.acer.common import AcerBase
from apex_acer.algorithms.acer.settings import ContinuousAcerConfig
from apex_acer.algorithms.algorithm import Action, LossOutput
from apex_acer.config import RunConfig
from apex_acer.functional import (
    Gaussian,
    continuous_acer_metrics,
    continuous_acer_policy_gradient,
    continuous_acer_targets,
    log_ratio,
    mean_kl_gradient,
    sample_actions,
    squared_error_loss,
    stochastic_dueling,
    surrogate_loss,
    trust_region_projection,
)
from apex_acer.networks.memory import State
from apex_acer.networks.stochastic_dueling import CRITIC, StochasticDueling
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import Batch, Shapes

MEAN, LOG_STD, SAMPLE = "mean", "log_std", "sample"  # the behaviour: mu, and the action before it is clipped to the box


class Outputs(NamedTuple):
    """What the networks say of a batch."""

    mean: Tensor
    """`[T, B, d]`, with gradient."""
    average_mean: Tensor
    """`[T, B, d]` of the average policy."""
    value: Tensor
    """`[T+1, B]` V, with gradient; the last row is only bootstrapped from."""
    q_taken: Tensor
    """`[T, B]` Q̃ of the actions taken, with gradient."""
    other_action: Tensor
    """`[T, B, d]` a′, a sample of the policy before it is clipped to the box."""
    q_other: Tensor
    """`[T, B]` Q̃ of a′."""


class ContinuousAcer(AcerBase):
    """A network with a policy's mean, V and A, and its average."""

    settings = ContinuousAcerConfig
    network: StochasticDueling
    average_network: StochasticDueling

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None:
        self._config, self._action_dim = settings(config), spec.action_dim
        super().__init__(config, spec, device)

    @staticmethod
    def build_network(config: RunConfig, spec: EnvironmentSpec) -> StochasticDueling:
        """A `StochasticDueling`, whose output is `mean` and `value`."""
        return StochasticDueling(config.network, spec)

    @staticmethod
    def behaviour_shapes(config: RunConfig, spec: EnvironmentSpec) -> Shapes:
        """The mean and the log of the standard deviation, and the action as it was sampled."""
        return dict.fromkeys((MEAN, LOG_STD, SAMPLE), spec.actions.shape)

    @staticmethod
    def state_shapes(config: RunConfig, spec: EnvironmentSpec) -> Shapes:
        """Those of the LSTMs of policy and critic, if there are any."""
        shapes = AcerBase.state_shapes(config, spec)
        return shapes | {f"{CRITIC}{name}": shape for name, shape in shapes.items()}

    @staticmethod
    def exploration(config: RunConfig, num: int, actor: int | None = None) -> Tensor:
        """Standard deviations `[num]`: `std`, times the temperature of an actor."""
        return torch.full((num,), settings(config).std * (1.0 if actor is None else config.actors.temperature(actor)))

    @staticmethod
    def act(
        network: nn.Module, obs: Tensor, state: State, *, greedy: bool, exploration: Tensor, generator: torch.Generator
    ) -> Action:
        """Samples from a Gaussian with the deviation `exploration`, or takes its mean if `greedy`; clipped to the box."""
        assert isinstance(network, StochasticDueling)
        output, state = network.step(obs, state)
        mean, std = output.mean.float(), exploration.unsqueeze(-1).expand_as(output.mean)
        sample = mean
        if not greedy:
            noise = torch.randn(mean.shape, generator=generator, device=mean.device)
            sample = sample_actions(Gaussian(mean, std.log()), noise)
        return Action(sample.clamp(-1, 1), {MEAN: mean, LOG_STD: std.log(), SAMPLE: sample}, state)

    def noise(self, batch: Batch) -> dict[str, Tensor]:
        """That of a′ and of the actions over which the advantage is averaged, `[T, B, 1 + n, d]`."""
        return {"actions": torch.randn(*batch.mask.shape, 1 + self._config.num_samples, self._action_dim)}

    def loss(self, batch: Batch, updates: int) -> LossOutput:
        """`continuous_acer_loss` of a batch of segments."""
        return continuous_acer_loss(self._config, batch, self._outputs(batch), self.rewards(batch), self.learned(batch))

    def _outputs(self, batch: Batch) -> Outputs:
        obs, reset = self.inputs(batch)
        acted, burn_in = (obs[: -reset.shape[1]], reset[:-1], batch.state), (self._config.burn_in, batch.fresh)
        mean = self.network.unroll_policy(*acted, *burn_in)
        value, features = self.network.unroll_critic(obs, reset, batch.state, *burn_in)
        with torch.no_grad():
            average_mean = self.average_network.unroll_policy(*acted)
        noise = batch.noise["actions"].movedim(2, 0)
        samples = sample_actions(Gaussian(mean, log_std(self._config, mean)), noise.to(mean.dtype))  # [1+n, T, B, d]
        # the environment clips what is sampled, so A is that of the clipped action
        actions = torch.cat([batch.action.unsqueeze(0), samples.clamp(-1, 1)])
        advantages = self.network.advantage(features[:-1], actions)  # [2+n, T, B]
        q_taken, q_other = (stochastic_dueling(value[:-1], advantage, advantages[2:]) for advantage in advantages[:2])
        return Outputs(mean, average_mean, value, q_taken, samples[0], q_other.detach())


def settings(config: RunConfig) -> ContinuousAcerConfig:
    """The `[algorithm]` section of a run of ACER for continuous actions."""
    assert isinstance(config.algorithm, ContinuousAcerConfig)
    return config.algorithm


def log_std(given: ContinuousAcerConfig, mean: Tensor) -> Tensor:
    """The log of the policy's standard deviation, of the shape and type of `mean`."""
    return torch.full_like(mean, given.std).log()


def continuous_acer_loss(
    given: ContinuousAcerConfig, batch: Batch, outputs: Outputs, reward: Tensor, mask: Tensor
) -> LossOutput:
    """The loss of a batch, averaged over its unmasked steps after the trust region's projection.

    Args:
        given: the algorithm's settings.
        batch: the batch; its rewards and mask are not used.
        outputs: of both networks.
        reward: `[T, B]` shaped and scaled rewards.
        mask: `[T, B]` bool, false on steps that are not learned from.
    """
    mean, average_mean, value, q_taken, other_action, q_other = outputs
    policy = Gaussian(mean.detach(), log_std(given, mean))
    average = Gaussian(average_mean, policy.log_std)
    behaviour, action = Gaussian(batch.behaviour[MEAN], batch.behaviour[LOG_STD]), batch.behaviour[SAMPLE]
    targets = continuous_acer_targets(
        log_rho=log_ratio(action, policy, behaviour),
        q_taken=q_taken,
        value=value,
        reward=reward,
        terminated=batch.terminated,
        mask=mask,
        gamma=given.gamma,
        action_dim=mean.shape[-1],
    )
    gradient = continuous_acer_policy_gradient(
        policy=policy,
        behaviour=behaviour,
        action=action,
        other_action=other_action,
        q_opc=targets.q_opc,
        q_other=q_other,
        value=value[:-1],
        truncation_threshold=given.truncation_threshold,
    )
    z = trust_region_projection(gradient, mean_kl_gradient(policy, average), given.trust_region_delta)
    policy_loss = surrogate_loss(mean, z, batch.importance, mask)
    q_loss, error = squared_error_loss(q_taken, targets.q_ret, batch.importance, mask)
    value_loss, _ = squared_error_loss(value[:-1], targets.value_target, batch.importance, mask)
    total = policy_loss + given.q_cost * (q_loss + value_loss)
    metrics = continuous_acer_metrics(
        targets,
        policy=policy,
        average=average,
        value=value[:-1],
        is_bound=(z != gradient).any(-1),
        mask=mask,
        truncation_threshold=given.truncation_threshold,
    )
    metrics |= {"loss": total, "policy_loss": policy_loss, "q_loss": q_loss, "value_loss": value_loss}
    priorities = error.abs().sum(0) / mask.sum(0).clamp(min=1)
    return LossOutput(total, {name: metric.detach() for name, metric in metrics.items()}, priorities, mask.sum())
