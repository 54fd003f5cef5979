"""Your own algorithm: Expected Sarsa (van Seijen et al. 2009), acting by a softmax of Q."""

from dataclasses import dataclass

import torch

from apex_acer.algorithms.algorithm import Action, Agent, Algorithm, LossOutput
from apex_acer.config import AlgorithmConfig, positive
from apex_acer.functional import masked_mean, masked_means, squared_error_loss
from apex_acer.networks.discrete import QNetwork


@dataclass(frozen=True)
class Settings(AlgorithmConfig):
    """`[algorithm]` of a run file: these keys beside `gamma`, `unroll_length`, `replay_ratio`, …"""

    actions = "Discrete"  # the kind of action space; "Box": continuous actions
    recurrent = False  # `act` keeps no recurrent state, so `network.lstm` must be 0

    temperature: float = 1.0
    """Temperature of the softmax; the lower, the greedier."""

    def __post_init__(self):
        super().__post_init__()  # checks the types
        positive("algorithm", self, "temperature")


class Softmax(Agent):
    """Samples from softmax(Q / temperature), times the temperature of the actor."""

    def __init__(self, config, spec):
        super().__init__(config, spec)
        self.network = QNetwork(config.network, spec, is_dueling=False)

    def act(self, obs, state, *, greedy, exploration, generator, updates):
        q = self.network(obs).q_values  # [N, A]
        pi = (q / (self.settings.temperature * exploration.unsqueeze(-1))).softmax(-1)
        action = q.argmax(-1) if greedy else torch.multinomial(pi, 1, generator=generator).squeeze(-1)
        return Action(action, {}, state)


class ExpectedSarsa(Algorithm):
    """Q(o, a) ← r + gamma · Σ π(a') Q(o', a'), with π = softmax(Q / temperature)."""

    settings_class, agent_class = Settings, Softmax

    def loss(self, samples):
        """The mean of ½ (target − Q)² over unmasked steps."""
        q = self.network(samples.obs.flatten(0, 1)).q_values.unflatten(0, samples.first.shape)  # [T+1, B, A]
        value = ((q / self.settings.temperature).softmax(-1) * q).sum(-1).detach()  # [T+1, B]
        target = samples.reward + samples.discount * value[1:]  # [T, B]
        q_taken = q[:-1].gather(-1, samples.action.unsqueeze(-1)).squeeze(-1)  # [T, B]
        loss, error = squared_error_loss(q_taken, target, samples.importance, samples.mask)
        metrics = masked_means({"value": value[:-1], "sarsa_error": error.abs()}, samples.mask)
        priorities = masked_mean(error.abs(), samples.mask, 0)  # [B]
        return LossOutput(loss, metrics | {"loss": loss.detach()}, priorities, samples.mask.sum())
