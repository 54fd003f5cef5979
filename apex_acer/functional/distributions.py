"""Distributions of actions: categorical, several such, and Gaussian with a diagonal covariance, also squashed by tanh."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol, Self, TypeVar

from torch import Tensor
from torch.nn.functional import softplus

from apex_acer.functional.branches import split_choices

HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


class Distribution(Protocol):
    """A distribution of actions for each place of `[...]`; what its methods return is `[...]`, with gradient."""

    def log_prob(self, action: Tensor) -> Tensor:
        """The log-probability or log-density of whole actions."""

    def entropy(self) -> Tensor:
        """The entropy in nats; that of a density may be negative."""

    def kl(self, other: Self) -> Tensor:
        """KL(self ‖ other)."""

    def __iter__(self) -> Iterator[Tensor]:
        """The tensors that it consists of."""


class Categorical(NamedTuple):
    """`log_probs` `[..., A]`, whose exponentials sum to 1. They may be −∞, for actions that are never taken."""

    log_probs: Tensor

    def log_prob(self, action: Tensor) -> Tensor:
        """The log-probability `[...]` of `action` `[...]` int64."""
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """The entropy `[...]`."""
        probs = self.log_probs.exp()
        return -(probs * self.log_probs.masked_fill(probs == 0, 0.0)).sum(-1)  # because 0 · −∞ is NaN

    def kl(self, other: Categorical) -> Tensor:
        """KL(self ‖ other), `[...]`; infinite if `other` never takes an action that this one takes."""
        probs = self.log_probs.exp()
        log_ratio = (self.log_probs - other.log_probs).masked_fill(probs == 0, 0.0)
        return (probs * log_ratio).sum(-1)


class Factored(tuple[Tensor, ...]):
    """Independent choices: the log-probabilities `[..., n]` of each. An action is a combination of them (`branches`)."""

    def __new__(cls, *log_probs: Tensor) -> Self:
        """One tensor for each choice."""
        return super().__new__(cls, log_probs)

    @property
    def sizes(self) -> list[int]:
        """How many there are to choose from, by branch."""
        return [log_probs.shape[-1] for log_probs in self]

    def log_prob(self, action: Tensor) -> Tensor:
        """The log-probability `[...]` of `action` `[...]` int64, a combination."""
        choices = split_choices(action, self.sizes)
        return sum_of(Categorical(log_probs).log_prob(choice) for log_probs, choice in zip(self, choices, strict=True))

    def entropy(self) -> Tensor:
        """The entropy `[...]`."""
        return sum_of(Categorical(log_probs).entropy() for log_probs in self)

    def kl(self, other: Factored) -> Tensor:
        """KL(self ‖ other), `[...]`."""
        return sum_of(Categorical(mine).kl(Categorical(its)) for mine, its in zip(self, other, strict=True))


def sum_of(terms: Iterable[Tensor]) -> Tensor:
    """Their sum; there must be one at least."""
    return functools.reduce(operator.add, terms)


class Gaussian(NamedTuple):
    """`mean` `[..., d]`, and `log_std`, the logarithm of the standard deviation, of a shape that fits it."""

    mean: Tensor
    log_std: Tensor

    def log_prob(self, action: Tensor) -> Tensor:
        """The log-density `[...]` of `action` `[..., d]`."""
        deviations = (action - self.mean) * (-self.log_std).exp()
        return -(0.5 * deviations.square() + self.log_std + HALF_LOG_TWO_PI).sum(-1)

    def entropy(self) -> Tensor:
        """The entropy `[...]`."""
        return (self.log_std + HALF_LOG_TWO_PI + 0.5).expand_as(self.mean).sum(-1)

    def kl(self, other: Gaussian) -> Tensor:
        """KL(self ‖ other), `[...]`."""
        log_ratio = self.log_std - other.log_std
        distance = (self.mean - other.mean) * (-other.log_std).exp()
        return 0.5 * ((2 * log_ratio).exp() + distance.square() - 1 - 2 * log_ratio).sum(-1)


AnyDistribution = TypeVar("AnyDistribution", bound=Distribution)


def each_tensor(policy: AnyDistribution, change: Callable[[Tensor], Tensor]) -> AnyDistribution:
    """`policy` with `change` applied to each of its tensors, such as to take some of its places, or no gradient."""
    return type(policy)(*map(change, policy))


def squashed_log_prob(pre_tanh: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """The log-density `[...]` of the action tanh(u), of u = `pre_tanh` `[..., d]` from a Gaussian.

    It takes off log(1 − tanh² u), as 2 (log 2 − u − softplus(−2u)), which is exact at the bounds, where tanh² rounds to 1.
    """
    log_slope = 2 * (math.log(2) - pre_tanh - softplus(-2 * pre_tanh))
    return Gaussian(mean, log_std).log_prob(pre_tanh) - log_slope.sum(-1)
