"""The actions that an environment takes: one or several choices, or a vector of numbers. Torch-free.

Policies choose `Box` actions in the normalised box [−1, 1]; `to_environment` is the one place that maps them to the bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MAX_COMBINATIONS = 2**62  # of choices; their numbers are int64
LARGEST_START = 2**31
FLOATS = "float16", "float32", "float64"
INTEGERS = "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"


class Choices:
    """One of `n` choices, which count from 0 inside this program."""

    n: int

    kind: ClassVar[str] = "Discrete"
    shape: ClassVar[tuple[int, ...]] = ()
    """Shape of one action as a policy chooses it."""
    dtype: ClassVar[str] = "int64"
    """NumPy name of its type."""

    @property
    def branches(self) -> tuple[int, ...]:
        """The numbers of choices whose combinations are the actions."""
        return (self.n,)

    def refusal(self, action: Array) -> str:
        """Why one of the actions `[...]` is not allowed, in one line; empty if all are."""
        low, high = action.min(), action.max()
        return "" if low >= 0 and high < self.n else f"action: {low} to {high}, allowed 0 to {self.n - 1}"

    def sample(self, rng: np.random.Generator, *size: int) -> Array:
        """Actions `[*size]` drawn uniformly."""
        drawn: Array = rng.integers(self.n, size=size)
        return drawn

    def has_choice(self, legal: Array) -> Array:
        """Whether each branch has a legal choice, `[...]` bool, for `legal` `[..., Σ branches]` bool."""
        found: Array = np.all([part.any(-1) for part in self._parts(legal)], 0)
        return found

    def sample_legal(self, rng: np.random.Generator, legal: Array) -> Array:
        """Actions `[...]` drawn uniformly of those whose choices are all `legal` `[..., Σ branches]`."""
        drawn = np.stack([part.argmax(-1) for part in self._parts(legal + rng.random(legal.shape))], -1)
        return self.combine(drawn)

    def combine(self, choices: Array) -> Array:
        """The actions `[...]` that consist of these `choices` `[..., branches]`."""
        action: Array = (choices * self._strides).sum(-1)
        return action

    def separate(self, action: Array) -> Array:
        """The choices `[..., branches]` that make up actions `[...]`."""
        choices: Array = action[..., None] // self._strides % np.array(self.branches)
        return choices

    def _parts(self, values: Array) -> list[Array]:
        return np.split(values, np.cumsum(self.branches[:-1]), -1)

    @property
    def _strides(self) -> Array:
        return np.array([math.prod(self.branches[index + 1 :]) for index in range(len(self.branches))])


@dataclass(frozen=True)
class Discrete(Choices):
    """`n` choices, which the environment counts from `start`."""

    n: int
    start: int
    """The environment's number of its first action."""

    def to_environment(self, action: Array) -> Array:
        """The actions `[...]` as the environment numbers them."""
        numbered: Array = action + self.start
        return numbered

    def describe(self) -> str:
        """The number of choices in words."""
        return str(self.n)

    def __str__(self) -> str:
        return f"Discrete({self.n}{f', start={self.start}' if self.start else ''})"


@dataclass(frozen=True)
class MultiDiscrete(Choices):
    """Several choices at once, also of a `MultiBinary`. Inside this program all of them together are one number.

    It counts their combinations as an array's elements in C order, so that the last choice changes fastest.
    """

    nvec: tuple[int, ...]
    """How many choices each branch has, in the order of the flattened array."""
    start: tuple[int, ...]
    """The environment's number of the first choice of each."""
    given_shape: tuple[int, ...]
    """Shape of one action as the environment takes it."""
    given_dtype: str
    """NumPy name of the type that the environment takes."""

    @property
    def n(self) -> int:  # type: ignore[override]
        """The number of combinations."""
        return math.prod(self.nvec)

    @property
    def branches(self) -> tuple[int, ...]:
        """The numbers of choices whose combinations are the actions."""
        return self.nvec

    def to_environment(self, action: Array) -> Array:
        """The choices `[N, *given_shape]` of the combinations `[N]`, as the environment numbers them."""
        choices = self.separate(action) + np.array(self.start)
        shaped: Array = choices.astype(self.given_dtype).reshape(len(action), *self.given_shape)
        return shaped

    def describe(self) -> str:
        """The numbers of choices in words."""
        return " x ".join(map(str, self.nvec))

    def __str__(self) -> str:
        return f"MultiDiscrete({list(self.nvec)}{f', start={list(self.start)}' if any(self.start) else ''})"


@dataclass(frozen=True)
class Box:
    """Vectors of d numbers, each between its own bounds in the environment and in [−1, 1] inside this program."""

    low: tuple[float, ...]
    """The d lower bounds, in the order of the flattened array."""
    high: tuple[float, ...]
    """The d upper bounds."""
    given_shape: tuple[int, ...]
    """Shape of one action as the environment takes it."""
    given_dtype: str
    """NumPy name of the type that the environment takes."""

    kind: ClassVar[str] = "Box"
    dtype: ClassVar[str] = "float32"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one action as a policy chooses it, `(d,)`."""
        return (len(self.low),)

    def refusal(self, action: Array) -> str:
        """Why one of the actions `[..., d]` is not allowed, in one line; empty if all are."""
        if not np.isfinite(action).all():
            return "action: not finite"
        low, high = action.min(), action.max()
        return "" if low >= -1 and high <= 1 else f"action: {low} to {high}, allowed -1 to 1"

    def to_environment(self, action: Array) -> Array:
        """The actions `[N, d]` between the environment's bounds, `[N, *given_shape]`."""
        low, high, share = np.asarray(self.low), np.asarray(self.high), (action.astype(np.float64) + 1) / 2
        scaled = np.clip(low * (1 - share) + high * share, low, high)  # `high - low` might be infinite
        shaped: Array = scaled.astype(self.given_dtype).reshape(len(action), *self.given_shape)
        return shaped

    def sample(self, rng: np.random.Generator, *size: int) -> Array:
        """Actions `[*size, d]` drawn uniformly."""
        drawn: Array = rng.uniform(-1, 1, (*size, *self.shape)).astype(self.dtype)
        return drawn

    def describe(self) -> str:
        """The number of numbers and their bounds in words."""
        bounds = " x ".join(f"[{low:g}, {high:g}]" for low, high in zip(self.low, self.high, strict=True))
        if len(set(zip(self.low, self.high, strict=True))) == 1 and len(self.low) > 1:
            bounds = f"[{self.low[0]:g}, {self.high[0]:g}] each"
        return f"{len(self.low)} number{'s' if len(self.low) > 1 else ''} in {bounds}"

    def __str__(self) -> str:
        return f"Box({self.describe()})"


Actions = Discrete | MultiDiscrete | Box


def actions_from_dict(values: dict[str, Any]) -> Actions:
    """The actions from `dataclasses.asdict` of them, also by way of JSON; raises TypeError or ValueError."""
    if not isinstance(values, dict):
        raise TypeError(f"actions {values!r}, allowed is a table")
    if "n" in values:
        return _checked_discrete(Discrete(**values))
    tuples = {name: tuple(value) for name, value in values.items() if isinstance(value, (list, tuple))}
    if "nvec" in values:
        return _checked_multi_discrete(MultiDiscrete(**{**values, **tuples}))
    return _checked_box(Box(**{**values, **tuples}))


def _checked_discrete(discrete: Discrete) -> Discrete:
    if type(discrete.n) is not int or type(discrete.start) is not int or discrete.n < 1:
        raise ValueError(f"actions {discrete}, allowed are integers, and an n of 1 or more")
    if abs(discrete.start) >= LARGEST_START:
        raise ValueError(f"actions start at {discrete.start}")
    return discrete


def _checked_multi_discrete(actions: MultiDiscrete) -> MultiDiscrete:
    _check_shape(actions.given_shape, len(actions.nvec))
    if not actions.nvec or not all(type(n) is int and n >= 1 for n in actions.nvec) or actions.n > MAX_COMBINATIONS:
        raise ValueError(f"nvec {actions.nvec}, allowed are integers of 1 or more with at most 2^62 combinations")
    starts = [type(start) is int and abs(start) < LARGEST_START for start in actions.start]
    if len(starts) != len(actions.nvec) or not all(starts):
        raise ValueError(f"start {actions.start} of {len(actions.nvec)} branches")
    if actions.given_dtype not in INTEGERS:
        raise ValueError(f"given_dtype {actions.given_dtype!r}, allowed are {', '.join(INTEGERS)}")
    return actions


def _checked_box(box: Box) -> Box:
    _check_shape(box.given_shape, len(box.low))
    if not all(type(bound) is float and math.isfinite(bound) for bound in box.low + box.high):
        raise ValueError(f"bounds {box.low} and {box.high}, allowed are finite floats")
    if len(box.low) != len(box.high) or any(low > high for low, high in zip(box.low, box.high, strict=True)):
        raise ValueError(f"bounds {box.low} and {box.high}, allowed are pairs of a lower and an upper one")
    if box.given_dtype not in FLOATS:
        raise ValueError(f"given_dtype {box.given_dtype!r}, allowed are {', '.join(FLOATS)}")
    return box


def _check_shape(shape: tuple[int, ...], num: int) -> None:
    if any(type(size) is not int or size < 1 for size in shape) or math.prod(shape) != num:
        raise ValueError(f"given_shape {shape} of {num} elements")
