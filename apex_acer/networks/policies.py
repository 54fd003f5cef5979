"""Networks of on-policy algorithms, a stochastic policy and V, and greedy actions from any network's output.

The policy's head suits the action space: categorical for choices, Gaussian for numbers, or both. It also knows what an actor
records, so that algorithms need not ask for the kind of actions.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from apex_acer.config import NetworkConfig
from apex_acer.functional import Distribution, Factored, Gaussian, Hybrid, join_choices, split_choices
from apex_acer.networks.network import Network, State, TorsoNetwork
from apex_acer.networks.torsos import build_torso, linear
from apex_acer.protocol.actions import Actions, Box, Choices
from apex_acer.protocol.composite import Composite
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import Shapes


class CategoricalOutput(NamedTuple):
    """`pi_logits` `[B, Σ branches]` of each choice, side by side."""

    pi_logits: Tensor


class CategoricalHead(nn.Module):
    """Logits of independent choices, by a linear layer."""

    def __init__(self, width: int, spec: EnvironmentSpec) -> None:
        super().__init__()
        self.branches = list(spec.actions.branches)
        self.pi_logits = linear(width, sum(self.branches), gain=0.01)

    @property
    def extras(self) -> Shapes:
        """Log-probabilities of each choice, side by side."""
        return {"log_probs": (sum(self.branches),)}

    def forward(self, features: Tensor) -> CategoricalOutput:
        return CategoricalOutput(self.pi_logits(features))

    def distribution(self, output: CategoricalOutput, temperature: Tensor | None = None) -> Distribution:
        """The policy, with its logits divided by `temperature` `[B]`."""
        logits = output.pi_logits.float()
        tempered = logits if temperature is None else logits / temperature.unsqueeze(-1)
        return Factored(*(part.log_softmax(-1) for part in torch.split(tempered, self.branches, -1)))

    def sample(self, policy: Any, generator: torch.Generator, *, greedy: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """Actions `[B]`, the likeliest if `greedy`, and the extras."""
        choices = (
            part.argmax(-1) if greedy else torch.multinomial(part.exp(), 1, generator=generator).squeeze(-1)
            for part in policy
        )
        return join_choices(choices, self.branches), {"log_probs": torch.cat([*policy], -1)}

    def recorded(self, action: Tensor, extras: dict[str, Tensor]) -> tuple[Distribution, Tensor]:
        """The behaviour policy, and the actions as it sampled them."""
        return Factored(*torch.split(extras["log_probs"], self.branches, -1)), action


class GaussianHead(nn.Module):
    """Means by a linear layer, and a learned standard deviation that does not depend on the observation."""

    def __init__(self, width: int, spec: EnvironmentSpec, initial_std: float) -> None:
        super().__init__()
        self.mean = linear(width, spec.action_dim, gain=0.01)
        self.log_std = nn.Parameter(torch.full((spec.action_dim,), math.log(initial_std)))

    @property
    def extras(self) -> Shapes:
        """Mean, logarithm of the standard deviation, and the sample before it is clipped to the box."""
        return dict.fromkeys(("mean", "log_std", "sample"), tuple(self.log_std.shape))

    def forward(self, features: Tensor) -> Gaussian:
        mean = self.mean(features)
        return Gaussian(mean, self.log_std.expand_as(mean))

    def distribution(self, output: Gaussian, temperature: Tensor | None = None) -> Distribution:
        """The policy, with its standard deviation multiplied by `temperature` `[B]`."""
        log_factor = 0.0 if temperature is None else temperature.log().unsqueeze(-1)
        return Gaussian(output.mean.float(), output.log_std.float() + log_factor)

    def sample(self, policy: Any, generator: torch.Generator, *, greedy: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """Actions `[B, d]` clipped to the box [−1, 1], of the means if `greedy`, and the extras."""
        mean, log_std = policy
        sample = mean
        if not greedy:
            sample = mean + log_std.exp() * torch.randn(mean.shape, generator=generator, device=mean.device)
        return sample.clamp(-1, 1), {"mean": mean, "log_std": log_std, "sample": sample}

    def recorded(self, action: Tensor, extras: dict[str, Tensor]) -> tuple[Distribution, Tensor]:
        """The behaviour policy, and the actions as it sampled them."""
        return Gaussian(extras["mean"], extras["log_std"]), extras["sample"]


class HybridOutput(NamedTuple):
    """`scores` `[B, Σ branches + d]`, the logits of each choice and then means; `log_std` `[B, d]`."""

    scores: Tensor
    log_std: Tensor


class HybridHead(nn.Module):
    """A categorical and a Gaussian head side by side."""

    def __init__(self, width: int, spec: EnvironmentSpec, initial_std: float) -> None:
        super().__init__()
        self.choices, self.numbers = CategoricalHead(width, spec), GaussianHead(width, spec, initial_std)
        self._sizes = [spec.num_choices, spec.action_dim]

    @property
    def extras(self) -> Shapes:
        """The extras of both."""
        return {**self.choices.extras, **self.numbers.extras}

    def forward(self, features: Tensor) -> HybridOutput:
        (logits,), (mean, log_std) = self.choices(features), self.numbers(features)
        return HybridOutput(torch.cat([logits, mean], -1), log_std)

    def distribution(self, output: HybridOutput, temperature: Tensor | None = None) -> Distribution:
        """The policy at `temperature` `[B]`."""
        logits, mean = torch.split(output.scores, self._sizes, -1)
        choices = self.choices.distribution(CategoricalOutput(logits), temperature)
        return Hybrid(*choices, *self.numbers.distribution(Gaussian(mean, output.log_std), temperature))

    def sample(self, policy: Any, generator: torch.Generator, *, greedy: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """Actions `[B, 1 + d]`, the likeliest if `greedy`, and the extras."""
        choices, records = self.choices.sample(policy.choices, generator, greedy=greedy)
        numbers, others = self.numbers.sample(policy.numbers, generator, greedy=greedy)
        return hybrid_action(choices, numbers), records | others

    def recorded(self, action: Tensor, extras: dict[str, Tensor]) -> tuple[Distribution, Tensor]:
        """The behaviour policy, and the actions as it sampled them."""
        choices, combination = self.choices.recorded(action[..., 0], extras)
        numbers, sample = self.numbers.recorded(action[..., 1:], extras)
        return Hybrid(*choices, *numbers), hybrid_action(combination, sample)


def hybrid_action(combination: Tensor, numbers: Tensor) -> Tensor:
    """Actions `[..., 1 + d]` float64 of a `combination` of choices `[...]` and `numbers` `[..., d]`."""
    return torch.cat([combination.unsqueeze(-1).double(), numbers.double()], -1)


def split_action(actions: Actions, action: Tensor) -> tuple[list[Tensor], Tensor]:
    """The choice `[...]` of each branch, and the numbers `[..., d]`, in actions `[..., *shape]`."""
    columns, first = action if actions.dim else action.unsqueeze(-1), int(actions.n > 0)
    choices = split_choices(columns[..., 0].long(), actions.branches) if first else []
    return choices, columns[..., first:]


def make_head(width: int, spec: EnvironmentSpec, initial_std: float) -> CategoricalHead | GaussianHead | HybridHead:
    """The head that suits the actions."""
    if not spec.action_dim:
        return CategoricalHead(width, spec)
    return (HybridHead if spec.num_choices else GaussianHead)(width, spec, initial_std)


class PolicyNetwork(Network[Any]):
    """A policy's head, and a head of V if `with_value`."""

    def __init__(self, config: NetworkConfig, spec: EnvironmentSpec, initial_std: float, *, with_value: bool) -> None:
        super().__init__(config, spec)
        self.head = make_head(self.width, spec, initial_std)
        self.value = linear(self.width, 1, gain=1.0) if with_value else None

    def heads(self, features: Tensor, inputs: Tensor) -> Any:
        output = self.head(features)
        return type(output)(self.forbid(output[0], inputs), *output[1:])

    def evaluate(self, inputs: Tensor, reset: Tensor, state: State) -> tuple[Distribution, Tensor | None]:
        """The policy, and V if the network has it, `[L, B]`, of `prepare`d observations; arguments as in `unroll`."""
        features = self.unroll_features(inputs, reset, state)
        value = self.value(features).squeeze(-1) if self.value else None
        return self.head.distribution(self.heads(features, inputs)), value


class ValueNetwork(TorsoNetwork):
    """V, with a torso of its own."""

    def __init__(self, config: NetworkConfig, spec: EnvironmentSpec) -> None:
        super().__init__(build_torso(config, spec, config.hidden_sizes), spec.input_shape)
        self.value = linear(self.width, 1, gain=1.0)

    def forward(self, inputs: Tensor) -> Tensor:
        """V `[B]` of `prepare`d observations `[B, *obs_shape]`."""
        value: Tensor = self.value(self.features(inputs)).squeeze(-1)
        return value


def greedy(actions: Actions, output: Tensor, *, is_joint: bool) -> Tensor:
    """The best actions `[B, *shape]` by the first field of a network's output.

    For numbers it is the actions themselves; for choices the logits `[B, Σ branches]` of each, or if it `is_joint`, the
    values `[B, A]` of all joint actions; for both the logits and then the numbers.
    """
    if not actions.n:
        return output.clamp(-1, 1)
    sizes = [actions.n] if is_joint else list(actions.branches)
    logits, numbers = output[..., : sum(sizes)], output[..., sum(sizes) :]
    combination = join_choices((part.argmax(-1) for part in torch.split(logits, sizes, -1)), sizes)
    return hybrid_action(combination, numbers.clamp(-1, 1)) if actions.dim else combination


def as_given(actions: Actions, action: Tensor) -> dict[str, Tensor]:
    """`Actions.to_environment` for tensors `[B, *shape]`: `action` as the environment takes it, or each `action.<part>`."""
    if not isinstance(actions, Composite):
        return {"action": _single_as_given(actions, action)}
    (choices, numbers), given = split_action(actions, action), {}
    for name, part in zip(actions.names, actions.parts, strict=True):
        if part.dim:
            mine, numbers = numbers[..., : part.dim], numbers[..., part.dim :]
        else:
            mine, choices = join_choices(choices[: len(part.branches)], part.branches), choices[len(part.branches) :]
        given[f"action.{name}"] = _single_as_given(part, mine)
    return given


def _single_as_given(actions: Actions, action: Tensor) -> Tensor:
    if isinstance(actions, Box):
        low, high = (torch.tensor(bounds, dtype=torch.float64) for bounds in (actions.low, actions.high))
        share = (action.double() + 1) / 2
        outputs = (low * (1 - share) + high * share).clamp(low, high)
    else:
        assert isinstance(actions, Choices)
        outputs = torch.stack(split_choices(action, actions.branches), -1) + torch.tensor(actions.start)
    return outputs.to(getattr(torch, actions.given_dtype)).reshape(-1, *actions.given_shape)
