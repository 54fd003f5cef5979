"""ACER for continuous actions: a Gaussian policy, a stochastic dueling network, Retrace and a trust region on the mean.

arXiv 1611.01224, section 5 and appendix.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from apex_acer.algorithms.acer.acer import AcerBase
from apex_acer.algorithms.acer.settings import ContinuousAcerConfig
from apex_acer.algorithms.algorithm import Action, Agent, LossOutput
from apex_acer.algorithms.samples import Sequences, prepared
from apex_acer.config import RunConfig
from apex_acer.functional import (
    Gaussian,
    continuous_acer_metrics,
    continuous_acer_policy_gradient,
    continuous_acer_targets,
    log_ratio,
    masked_mean,
    mean_kl_gradient,
    sample_actions,
    squared_error_loss,
    stochastic_dueling,
    surrogate_loss,
    trust_region_projection,
)
from apex_acer.networks.memory import State, lstm_shapes
from apex_acer.networks.stochastic_dueling import CRITIC, StochasticDueling
from apex_acer.protocol.specification import EnvironmentSpec

MEAN, LOG_STD, SAMPLE = "mean", "log_std", "sample"  # extras: the behaviour policy and its action before it is clipped


class Outputs(NamedTuple):
    """The networks' estimates for a batch."""

    mean: Tensor
    """`[T, B, d]`, with gradient."""
    average_mean: Tensor
    """`[T, B, d]` of the average policy."""
    value: Tensor
    """`[T+1, B]` V, with gradient; the last row is only bootstrapped from."""
    q_taken: Tensor
    """`[T, B]` Q̃ of the actions taken, with gradient."""
    other_action: Tensor
    """`[T, B, d]` a′, a sample of the policy, not clipped to the box."""
    q_other: Tensor
    """`[T, B]` Q̃ of a′."""


class ContinuousAcerAgent(Agent):
    """Samples from a Gaussian of fixed standard deviation around the policy's mean."""

    settings: ContinuousAcerConfig
    network: StochasticDueling

    def __init__(self, config: RunConfig, spec: EnvironmentSpec) -> None:
        super().__init__(config, spec)
        self.network = StochasticDueling(config.network, spec)
        self.extras = dict.fromkeys((MEAN, LOG_STD, SAMPLE), spec.actions.shape)
        shapes = lstm_shapes(config.network.lstm)
        self.state = shapes | {f"{CRITIC}{name}": shape for name, shape in shapes.items()}

    def exploration(self, num: int, actor: int | None = None, env_steps: int = 0) -> Tensor:
        """Standard deviations `[num]`: `std` times the actor's temperature."""
        return torch.full((num,), self.settings.std * self.temperature(actor))

    def act(
        self, obs: Tensor, state: State, *, greedy: bool, exploration: Tensor, generator: torch.Generator, updates: int
    ) -> Action:
        """Samples with the standard deviation `exploration`, or takes the mean if `greedy`, and clips to the box."""
        output, state = self.network.step(obs, state)
        mean, std = output.mean.float(), exploration.unsqueeze(-1).expand_as(output.mean)
        sample = mean
        if not greedy:
            noise = torch.randn(mean.shape, generator=generator, device=mean.device)
            sample = sample_actions(Gaussian(mean, std.log()), noise)
        return Action(sample.clamp(-1, 1), {MEAN: mean, LOG_STD: std.log(), SAMPLE: sample}, state)


class ContinuousAcer(AcerBase):
    """ACER for continuous actions."""

    settings_class = ContinuousAcerConfig
    agent_class = ContinuousAcerAgent
    settings: ContinuousAcerConfig
    network: StochasticDueling
    average_network: StochasticDueling

    def noise(self, samples: Sequences) -> dict[str, Tensor]:
        """Standard normal noise of a′ and of the n actions over which the advantage is averaged, `[T, B, 1 + n, d]`."""
        return {"actions": torch.randn(*samples.mask.shape, 1 + self.settings.num_samples, self.agent.spec.action_dim)}

    def loss(self, samples: Sequences) -> LossOutput:
        return continuous_acer_loss(self.settings, samples, self._outputs(samples), self.learned(samples))

    def _outputs(self, samples: Sequences) -> Outputs:
        obs, first, state = prepared(self.network, samples.obs), samples.first, samples.state
        steps, burn_in = (obs[: -first.shape[1]], first[:-1], state), (self.settings.burn_in, samples.fresh)
        mean = self.network.unroll_policy(*steps, *burn_in)
        value, features = self.network.unroll_critic(obs, first, state, *burn_in)
        with torch.no_grad():
            average_mean = self.average_network.unroll_policy(*steps)
        noise = samples.noise["actions"].movedim(2, 0)
        drawn = sample_actions(Gaussian(mean, log_std(self.settings, mean)), noise.to(mean.dtype))  # [1+n, T, B, d]
        # A is evaluated at clipped actions, because the environment clips too
        actions = torch.cat([samples.action.unsqueeze(0), drawn.clamp(-1, 1)])
        advantages = self.network.advantage(features[:-1], actions)  # [2+n, T, B]
        q_taken, q_other = (stochastic_dueling(value[:-1], advantage, advantages[2:]) for advantage in advantages[:2])
        return Outputs(mean, average_mean, value, q_taken, drawn[0], q_other.detach())


def log_std(settings: ContinuousAcerConfig, mean: Tensor) -> Tensor:
    """The logarithm of the policy's standard deviation, with the shape and type of `mean`."""
    return torch.full_like(mean, settings.std).log()


def continuous_acer_loss(
    settings: ContinuousAcerConfig, samples: Sequences, outputs: Outputs, mask: Tensor
) -> LossOutput:
    """The loss of a batch, averaged over the unmasked steps after the trust region's projection.

    `mask` `[T, B]` bool replaces the mask of `samples`.
    """
    mean, average_mean, value, q_taken, other_action, q_other = outputs
    policy = Gaussian(mean.detach(), log_std(settings, mean))
    average = Gaussian(average_mean, policy.log_std)
    behaviour, action = Gaussian(samples.extras[MEAN], samples.extras[LOG_STD]), samples.extras[SAMPLE]
    targets = continuous_acer_targets(
        log_rho=log_ratio(action, policy, behaviour),
        q_taken=q_taken,
        value=value,
        reward=samples.reward,
        discount=samples.discount,
        mask=mask,
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
        truncation_threshold=settings.truncation_threshold,
    )
    z = trust_region_projection(gradient, mean_kl_gradient(policy, average), settings.trust_region_delta)
    policy_loss = surrogate_loss(mean, z, samples.importance, mask)
    q_loss, error = squared_error_loss(q_taken, targets.q_ret, samples.importance, mask)
    value_loss, _ = squared_error_loss(value[:-1], targets.value_target, samples.importance, mask)
    total = policy_loss + settings.q_cost * (q_loss + value_loss)
    metrics = continuous_acer_metrics(
        targets,
        policy=policy,
        average=average,
        value=value[:-1],
        is_bound=(z != gradient).any(-1),
        mask=mask,
        truncation_threshold=settings.truncation_threshold,
    )
    metrics |= {"loss": total, "policy_loss": policy_loss, "q_loss": q_loss, "value_loss": value_loss}
    metrics = {name: metric.detach() for name, metric in metrics.items()}
    return LossOutput(total, metrics, masked_mean(error.abs(), mask, 0), mask.sum())
