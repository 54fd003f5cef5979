"""Distributions of actions: categorical, several choices, Gaussian, hybrid and squashed Gaussian; and action masks.

Several choices (`MultiDiscrete` actions) are one joint action, counted in C order, the last choice fastest. Logits and
values of illegal actions are so low that they are never chosen.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
MAX_LOG_RATIO = 30.0  # of two probabilities: exp of it is finite in float32, and far above any threshold
ILLEGAL = -1e9  # finite, because 0 · −∞ is NaN; exp of it still underflows to 0


class Distribution(Protocol):
    """A batch `[...]` of distributions of actions, whose methods give `[...]` with gradient."""

    def log_prob(self, action: Tensor) -> Tensor:
        """Log-probability or log-density of `action`."""

    def entropy(self) -> Tensor:
        """Entropy in nats; a density's may be negative."""

    def kl(self, other: Self) -> Tensor:
        """KL(self ‖ other)."""

    def __iter__(self) -> Iterator[Tensor]:
        """The tensors that describe the distribution."""


class Categorical(NamedTuple):
    """Log-probabilities `log_probs` `[..., A]`, which may be −∞."""

    log_probs: Tensor

    def log_prob(self, action: Tensor) -> Tensor:
        """Log-probability of `action` `[...]` int64."""
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        probs = self.log_probs.exp()
        return -(probs * self.log_probs.masked_fill(probs == 0, 0.0)).sum(-1)  # because 0 · −∞ is NaN

    def kl(self, other: Categorical) -> Tensor:
        """KL(self ‖ other); infinite if `other` never takes an action that this distribution takes."""
        probs = self.log_probs.exp()
        log_ratio = (self.log_probs - other.log_probs).masked_fill(probs == 0, 0.0)
        return (probs * log_ratio).sum(-1)


class Factored(tuple[Tensor, ...]):
    """Independent choices: log-probabilities `[..., n]` of each; an action is a combination (`join_choices`)."""

    def __new__(cls, *log_probs: Tensor) -> Self:
        return super().__new__(cls, log_probs)

    def log_prob(self, action: Tensor) -> Tensor:
        """Log-probability of the combination `action` `[...]` int64."""
        choices = split_choices(action, [log_probs.shape[-1] for log_probs in self])
        return sum_of(Categorical(log_probs).log_prob(choice) for log_probs, choice in zip(self, choices, strict=True))

    def entropy(self) -> Tensor:
        return sum_of(Categorical(log_probs).entropy() for log_probs in self)

    def kl(self, other: Factored) -> Tensor:
        return sum_of(Categorical(mine).kl(Categorical(its)) for mine, its in zip(self, other, strict=True))


class Gaussian(NamedTuple):
    """A diagonal Gaussian: `mean` `[..., d]`, and `log_std`, which broadcasts to it."""

    mean: Tensor
    log_std: Tensor

    def log_prob(self, action: Tensor) -> Tensor:
        """Log-density of `action` `[..., d]`."""
        deviations = (action - self.mean) * (-self.log_std).exp()
        return -(0.5 * deviations.square() + self.log_std + HALF_LOG_TWO_PI).sum(-1)

    def entropy(self) -> Tensor:
        return (self.log_std + HALF_LOG_TWO_PI + 0.5).expand_as(self.mean).sum(-1)

    def kl(self, other: Gaussian) -> Tensor:
        log_ratio = self.log_std - other.log_std
        distance = (self.mean - other.mean) * (-other.log_std).exp()
        return 0.5 * ((2 * log_ratio).exp() + distance.square() - 1 - 2 * log_ratio).sum(-1)


class Hybrid(tuple[Tensor, ...]):
    """Independent choices and a Gaussian: log-probabilities `[..., n]` of each choice, then `mean` and `log_std` `[..., d]`.

    An action `[..., 1 + d]` is the number of a combination (`join_choices`) and then the Gaussian's sample.
    """

    def __new__(cls, *tensors: Tensor) -> Self:
        return super().__new__(cls, tensors)

    @property
    def choices(self) -> Factored:
        return Factored(*self[:-2])

    @property
    def numbers(self) -> Gaussian:
        return Gaussian(*self[-2:])

    def log_prob(self, action: Tensor) -> Tensor:
        """Log-density of `action` `[..., 1 + d]`."""
        choices = self.choices.log_prob(action[..., 0].long())
        return choices + self.numbers.log_prob(action[..., 1:].to(choices.dtype))

    def entropy(self) -> Tensor:
        return self.choices.entropy() + self.numbers.entropy()

    def kl(self, other: Hybrid) -> Tensor:
        return self.choices.kl(other.choices) + self.numbers.kl(other.numbers)


AnyDistribution = TypeVar("AnyDistribution", bound=Distribution)


def each_tensor(policy: AnyDistribution, change: Callable[[Tensor], Tensor]) -> AnyDistribution:
    """`policy` with `change`, such as a slice or `Tensor.detach`, applied to each tensor."""
    return type(policy)(*map(change, policy))


def squashed_log_prob(pre_tanh: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Log-density `[...]` of the action tanh(u), u = `pre_tanh` `[..., d]` from a Gaussian.

    log(1 − tanh² u) is computed as 2 (log 2 − u − softplus(−2u)), which is exact where tanh² rounds to 1.
    """
    log_slope = 2 * (math.log(2) - pre_tanh - softplus(-2 * pre_tanh))
    return Gaussian(mean, log_std).log_prob(pre_tanh) - log_slope.sum(-1)


def sum_of(terms: Iterable[Tensor]) -> Tensor:
    """Sum of one or more `terms`."""
    return functools.reduce(operator.add, terms)


def joint_logits(logits: Tensor, sizes: Sequence[int]) -> Tensor:
    """Logits `[..., Π sizes]` of all combinations of independent choices, from the choices' logits `[..., Σ sizes]`."""
    joint, *others = torch.split(logits, list(sizes), -1)
    for branch in others:
        joint = (joint.unsqueeze(-1) + branch.unsqueeze(-2)).flatten(-2)
    return joint


def split_choices(combination: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """The choices `[...]` of a `combination` `[...]` int64, one for each of `sizes`."""
    choices = []
    for size in sizes[:0:-1]:
        choices.append(combination % size)
        combination = combination // size
    return [combination, *choices[::-1]]


def join_choices(choices: Iterable[Tensor], sizes: Sequence[int]) -> Tensor:
    """The combination `[...]` int64 of `choices` `[...]`, one for each of `sizes`."""
    combination, *others = choices
    for choice, size in zip(others, sizes[1:], strict=True):
        combination = combination * size + choice
    return combination


def forbid(scores: Tensor, legal: Tensor) -> Tensor:
    """Logits or values `[..., A]` with `ILLEGAL` where `legal` `[..., A]` is false."""
    return scores.masked_fill(~legal, ILLEGAL)


def is_legal(scores: Tensor) -> Tensor:
    """The mask `[..., A]` bool of legal logits, values or log-probabilities after `forbid`."""
    return scores > ILLEGAL / 2


def legal_combinations(legal: Tensor, sizes: Sequence[int]) -> Tensor:
    """The mask `[..., Π sizes]` bool of combinations of `legal` choices `[..., Σ sizes]` only."""
    return is_legal(joint_logits(forbid(torch.zeros_like(legal, dtype=torch.float32), legal), sizes))


def random_legal(scores: Tensor, uniform: Tensor) -> Tensor:
    """A random legal index `[...]` of `scores` `[..., A]`, from `uniform` `[...]` numbers in [0, 1)."""
    legal = is_legal(scores)
    rank = (uniform * legal.sum(-1)).long().unsqueeze(-1)  # how many legal ones come before it
    return (legal.cumsum(-1) > rank).int().argmax(-1)
