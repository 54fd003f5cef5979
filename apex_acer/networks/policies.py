"""Networks of on-policy algorithms, a stochastic policy and V, and what each kind of actions has: heads and greedy actions.

The policy's head fits the kind of action space: categorical for choices, Gaussian for a `Box`. A head knows what an actor
records of its extras and how that is read again, so algorithms need not ask for the kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from apex_acer.config import NetworkConfig
from apex_acer.functional import Distribution, Factored, Gaussian, join_choices, split_choices
from apex_acer.networks.network import RecurrentNetwork, State, TorsoNetwork
from apex_acer.networks.torsos import linear
from apex_acer.protocol.actions import Actions, Box, Choices
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import Shapes


class CategoricalOutput(NamedTuple):
    """`pi_logits` `[B, A]`; of several choices at once, those of each side by side."""

    pi_logits: Tensor


class CategoricalHead(nn.Module):
    """A linear layer of logits; several choices at once are independent of each other."""

    def __init__(self, width: int, spec: EnvironmentSpec, initial_std: float) -> None:
        super().__init__()
        del initial_std
        self.branches = list(spec.actions.branches)
        self.pi_logits = linear(width, sum(self.branches), gain=0.01)

    @staticmethod
    def extras(spec: EnvironmentSpec) -> Shapes:
        """The log-probabilities of all choices, those of each branch side by side."""
        return {"log_probs": (spec.num_choices,)}

    def forward(self, features: Tensor, forbid: Callable[[Tensor], Tensor]) -> CategoricalOutput:
        """The output for features `[..., F]`; `forbid` masks illegal choices in its logits."""
        return CategoricalOutput(forbid(self.pi_logits(features)))

    def distribution(self, output: CategoricalOutput, temperature: Tensor | None = None) -> Distribution:
        """The policy, with its logits divided by `temperature` `[B]`."""
        logits = output.pi_logits.float()
        tempered = logits if temperature is None else logits / temperature.unsqueeze(-1)
        return Factored(*(part.log_softmax(-1) for part in torch.split(tempered, self.branches, -1)))

    def sample(self, policy: Any, generator: torch.Generator, *, greedy: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """Actions `[B]`, the likeliest ones if `greedy`, and the extras."""
        choices = (
            part.argmax(-1) if greedy else torch.multinomial(part.exp(), 1, generator=generator).squeeze(-1)
            for part in policy
        )
        return join_choices(choices, self.branches), {"log_probs": torch.cat([*policy], -1)}

    def recorded(self, action: Tensor, extras: dict[str, Tensor]) -> tuple[Distribution, Tensor]:
        """The policy that acted, and the actions as it drew them."""
        return Factored(*torch.split(extras["log_probs"], self.branches, -1)), action


class GaussianHead(nn.Module):
    """A linear layer of means; the standard deviation is learned, and is the same for all observations."""

    def __init__(self, width: int, spec: EnvironmentSpec, initial_std: float) -> None:
        super().__init__()
        self.mean = linear(width, spec.action_dim, gain=0.01)
        self.log_std = nn.Parameter(torch.full((spec.action_dim,), math.log(initial_std)))

    @staticmethod
    def extras(spec: EnvironmentSpec) -> Shapes:
        """The mean and the log of the standard deviation, and the action before it is clipped to the box."""
        return dict.fromkeys(("mean", "log_std", "sample"), spec.actions.shape)

    def forward(self, features: Tensor, forbid: Callable[[Tensor], Tensor]) -> Gaussian:
        """The Gaussian for features `[..., F]`; samples, which may leave the box [−1, 1], are clipped to it."""
        del forbid
        mean = self.mean(features)
        return Gaussian(mean, self.log_std.expand_as(mean))

    @staticmethod
    def distribution(output: Gaussian, temperature: Tensor | None = None) -> Distribution:
        """The policy, with its standard deviation multiplied by `temperature` `[B]`."""
        more = 0.0 if temperature is None else temperature.log().unsqueeze(-1)
        return Gaussian(output.mean.float(), output.log_std.float() + more)

    @staticmethod
    def sample(policy: Any, generator: torch.Generator, *, greedy: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """Actions `[B, d]`, the means if `greedy`, and the extras."""
        mean, log_std = policy
        drawn = mean
        if not greedy:
            drawn = mean + log_std.exp() * torch.randn(mean.shape, generator=generator, device=mean.device)
        return drawn.clamp(-1, 1), {"mean": mean, "log_std": log_std, "sample": drawn}

    @staticmethod
    def recorded(action: Tensor, extras: dict[str, Tensor]) -> tuple[Distribution, Tensor]:
        """The policy that acted, and the actions as it drew them."""
        return Gaussian(extras["mean"], extras["log_std"]), extras["sample"]


PolicyHead = CategoricalHead | GaussianHead


def policy_head(spec: EnvironmentSpec) -> type[PolicyHead]:
    """The head for an environment's actions."""
    return GaussianHead if isinstance(spec.actions, Box) else CategoricalHead


def greedy(actions: Actions, output: Tensor, *, is_joint: bool) -> Tensor:
    """The best actions `[B, *shape]` by a network's `output`.

    That is the actions themselves; of choices it is the logits `[B, Σ branches]` of each, or if it `is_joint`, the values
    `[B, A]` of all combinations.
    """
    if isinstance(actions, Box):
        return output.clamp(-1, 1)
    sizes = list(actions.branches)
    parts = [output] if is_joint else torch.split(output, sizes, -1)
    return join_choices((part.argmax(-1) for part in parts), [actions.n] if is_joint else sizes)


def as_given(actions: Actions, action: Tensor) -> Tensor:
    """`Actions.to_environment` for tensors: `[B, *shape]` as `[B, *given_shape]`."""
    if isinstance(actions, Box):
        low, high = (torch.tensor(bounds, dtype=torch.float64) for bounds in (actions.low, actions.high))
        share = (action.double() + 1) / 2
        given = (low * (1 - share) + high * share).clamp(low, high)
    else:
        assert isinstance(actions, Choices)
        given = torch.stack(split_choices(action, actions.branches), -1) + torch.tensor(actions.start)
    return given.to(getattr(torch, actions.given_dtype)).reshape(-1, *actions.given_shape)


class PolicyAndValue(NamedTuple):
    """The `policy` of `[..., B]` observations, and V `[..., B]` if the network has it."""

    policy: Distribution
    value: Tensor | None


class PolicyNetwork(RecurrentNetwork[Any]):
    """A policy's head, and a head of V if `with_value`."""

    def __init__(self, config: NetworkConfig, spec: EnvironmentSpec, initial_std: float, *, with_value: bool) -> None:
        super().__init__(config, spec)
        self.head = policy_head(spec)(self.width, spec, initial_std)
        self.value = linear(self.width, 1, gain=1.0) if with_value else None

    def heads(self, features: Tensor, inputs: Tensor) -> Any:
        return self.head(features, lambda logits: self.forbid(logits, inputs))

    def evaluate(self, inputs: Tensor, reset: Tensor, state: State) -> PolicyAndValue:
        """Policy and V `[L, B]` for `prepare`d consecutive observations; the arguments are those of `unroll`."""
        features = self.unroll_features(inputs, reset, state)
        value = self.value(features).squeeze(-1) if self.value else None
        return PolicyAndValue(self.head.distribution(self.heads(features, inputs)), value)


class ValueNetwork(TorsoNetwork):
    """V, with a torso of its own."""

    def __init__(self, config: NetworkConfig, spec: EnvironmentSpec) -> None:
        super().__init__(config, spec, config.hidden_sizes)
        self.value = linear(self.width, 1, gain=1.0)

    def forward(self, inputs: Tensor) -> Tensor:
        """V `[B]` of `prepare`d observations `[B, *obs_shape]`."""
        value: Tensor = self.value(self.features(inputs)).squeeze(-1)
        return value
