"""Action spaces: one choice, several choices at once, or a vector of numbers. Torch-free.

`composite.py` puts several together, `environments/spaces.py` makes them from gymnasium's spaces, and `networks/policies.py`
has a distribution for each. No other file depends on the kind of actions.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MAX_COMBINATIONS = 2**62  # of choices; their numbers are int64
LARGEST_START = 2**31
FLOATS = "float16", "float32", "float64"
DTYPES = {"Discrete": "int64", "Box": "float32", "Hybrid": "float64"}
INTEGERS = "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"
TOLERANCE = 1e-6  # of bounds, which a client may have in another precision


class Actions(ABC):
    """An action space.

    A policy chooses a number from 0, or numbers in [−1, 1]; `to_environment` alone turns it into what the environment takes.
    """

    n: int
    """Number of discrete actions, or of combinations of several choices; 0 for continuous actions."""
    given_shape: tuple[int, ...]
    """Shape of one action as the environment takes it."""
    given_dtype: str
    """NumPy name of the type of an action as the environment takes it."""

    @property
    def kind(self) -> str:
        """`Discrete`, `Box`, or `Hybrid` for both at once, as in `AlgorithmConfig.actions`."""
        return "Discrete" if not self.dim else "Hybrid" if self.n else "Box"

    @property
    def dtype(self) -> str:
        """NumPy name of the type of a policy's actions, on the wire and in replay."""
        return DTYPES[self.kind]

    @property
    def branches(self) -> tuple[int, ...]:
        """Number of choices of each branch, whose combinations are the actions; empty for continuous actions."""
        return ()

    @property
    def dim(self) -> int:
        """d, the number of dimensions of a continuous action; 0 for discrete actions."""
        return 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a policy's action: `()`, `(d,)`, or `(1 + d,)` with the number of the combination of choices first."""
        return (bool(self.n) + self.dim,) if self.dim else ()

    @abstractmethod
    def refusal(self, action: Array) -> str:
        """Why one of a policy's actions `[..., *shape]` is not allowed, in one line; empty if all are allowed."""

    @abstractmethod
    def sample(self, rng: np.random.Generator, *size: int, legal: Array | None = None) -> Array:
        """Random actions `[*size, *shape]`, uniform over the `legal` ones, a mask `[*size, Σ branches]` bool."""

    @abstractmethod
    def to_environment(self, action: Array) -> Any:
        """Converts a policy's actions `[N, *shape]` to the environment's actions `[N, *given_shape]`."""

    def for_user(self, actions: Any) -> Any:
        """The first of the environment's actions `[N, *given_shape]`, as `Policy.act` returns it."""
        return actions[0, ...]  # `...`: an array, even of no dimensions

    def for_clients(self, actions: Any) -> list[Any]:
        """The environment's actions `[N, *given_shape]` as JSON values, one for each remote client."""
        flat: list[Any] = actions.reshape(len(actions), -1).tolist()
        return flat

    @abstractmethod
    def client_space(self) -> dict[str, Any]:
        """The action space as it is in a remote client's `hello`; empty if remote clients cannot have it."""

    @abstractmethod
    def fits(self, space: dict[str, Any]) -> bool:
        """Whether the `space` in a remote client's `hello` is this action space."""

    @abstractmethod
    def describe(self) -> str:
        """The number of choices of each branch, or the bounds, as text."""

    @abstractmethod
    def check(self) -> None:
        """Raises ValueError if a field is invalid or does not fit the others."""


class Choices(Actions):
    """Discrete actions: one of `n` choices or of `n` combinations of choices. A policy counts them from 0."""

    start: int | tuple[int, ...]
    """The environment's number of the first choice, for each branch if there are several."""

    def refusal(self, action: Array) -> str:
        low, high = action.min(), action.max()
        return "" if low >= 0 and high < self.n else f"action: {low} to {high}, allowed 0 to {self.n - 1}"

    def sample(self, rng: np.random.Generator, *size: int, legal: Array | None = None) -> Array:
        if legal is None:
            drawn: Array = rng.integers(self.n, size=size)
            return drawn
        parts = split(legal + rng.random(legal.shape), self.branches)
        return self.combine(np.stack([part.argmax(-1) for part in parts], -1))

    def combine(self, choices: Array) -> Array:
        """The numbers `[...]` of the combinations of `choices` `[..., branches]`, each counted from 0."""
        combined: Array = (choices * self._strides).sum(-1)
        return combined

    @property
    def _strides(self) -> Array:
        """Difference of a combination's number per step of each of its choices, `[branches]`."""
        return np.array([math.prod(self.branches[index + 1 :]) for index in range(len(self.branches))])


@dataclass(frozen=True)
class Discrete(Choices):
    """One of `n` choices, which the environment counts from `start`."""

    n: int
    start: int

    given_shape = ()
    given_dtype = "int64"

    @property
    def branches(self) -> tuple[int, ...]:
        return (self.n,)

    def to_environment(self, action: Array) -> Array:
        numbered: Array = action + self.start
        return numbered

    def for_user(self, actions: Array) -> int:
        return int(actions[0])

    def for_clients(self, actions: Array) -> list[Any]:
        numbers: list[Any] = actions.tolist()
        return numbers

    def client_space(self) -> dict[str, Any]:
        return {"n": self.n, "start": self.start}

    def fits(self, space: dict[str, Any]) -> bool:
        return {"start": 0, **space} == self.client_space()

    def describe(self) -> str:
        return str(self.n)

    def __str__(self) -> str:
        return f"Discrete({self.n}{f', start={self.start}' if self.start else ''})"

    def check(self) -> None:
        if type(self.n) is not int or type(self.start) is not int or self.n < 1:
            raise ValueError(f"actions {self}, allowed are integers, and an n of 1 or more")
        if abs(self.start) >= LARGEST_START:
            raise ValueError(f"actions start at {self.start}")


@dataclass(frozen=True)
class MultiDiscrete(Choices):
    """Several choices at once, from a `MultiDiscrete` or `MultiBinary` space.

    A policy's action is the number of their combination in C order: the last choice changes fastest.
    """

    nvec: tuple[int, ...]
    """Number of choices of each branch, in the order of the flattened array."""
    start: tuple[int, ...]
    given_shape: tuple[int, ...]
    given_dtype: str

    @property
    def n(self) -> int:  # type: ignore[override]
        return math.prod(self.nvec)

    @property
    def branches(self) -> tuple[int, ...]:
        return self.nvec

    def to_environment(self, action: Array) -> Array:
        choices = action[..., None] // self._strides % np.array(self.nvec) + np.array(self.start)
        shaped: Array = choices.astype(self.given_dtype).reshape(len(action), *self.given_shape)
        return shaped

    def client_space(self) -> dict[str, Any]:
        return {"nvec": list(self.nvec), "start": list(self.start)}

    def fits(self, space: dict[str, Any]) -> bool:
        return {"start": [0] * len(self.nvec), **space} == self.client_space()

    def describe(self) -> str:
        return " x ".join(map(str, self.nvec))

    def __str__(self) -> str:
        return f"MultiDiscrete({list(self.nvec)}{f', start={list(self.start)}' if any(self.start) else ''})"

    def check(self) -> None:
        _check_shape(self.given_shape, len(self.nvec))
        if not self.nvec or not all(type(n) is int and n >= 1 for n in self.nvec) or self.n > MAX_COMBINATIONS:
            raise ValueError(f"nvec {self.nvec}, allowed are integers of 1 or more with at most 2^62 combinations")
        are_small = all(type(start) is int and abs(start) < LARGEST_START for start in self.start)
        if len(self.start) != len(self.nvec) or not are_small:
            raise ValueError(f"start {self.start} of {len(self.nvec)} branches")
        if self.given_dtype not in INTEGERS:
            raise ValueError(f"given_dtype {self.given_dtype!r}, allowed are {', '.join(INTEGERS)}")


@dataclass(frozen=True)
class Box(Actions):
    """Vectors of d numbers: each is in [−1, 1] for a policy, and between its bounds in the environment."""

    low: tuple[float, ...]
    """Lower bound of each dimension, `[d]`, in the order of the flattened array."""
    high: tuple[float, ...]
    """Upper bound of each dimension, `[d]`."""
    given_shape: tuple[int, ...]
    given_dtype: str

    n = 0

    @property
    def dim(self) -> int:
        return len(self.low)

    def refusal(self, action: Array) -> str:
        if not np.isfinite(action).all():
            return "action: not finite"
        low, high = action.min(), action.max()
        return "" if low >= -1 and high <= 1 else f"action: {low} to {high}, allowed -1 to 1"

    def sample(self, rng: np.random.Generator, *size: int, legal: Array | None = None) -> Array:
        del legal  # continuous actions have no masks
        drawn: Array = rng.uniform(-1, 1, (*size, *self.shape)).astype(self.dtype)
        return drawn

    def to_environment(self, action: Array) -> Array:
        low, high, share = np.asarray(self.low), np.asarray(self.high), (action.astype(np.float64) + 1) / 2
        scaled = np.clip(low * (1 - share) + high * share, low, high)  # `high - low` might be infinite
        shaped: Array = scaled.astype(self.given_dtype).reshape(len(action), *self.given_shape)
        return shaped

    def client_space(self) -> dict[str, Any]:
        return {"low": list(self.low), "high": list(self.high)}

    def fits(self, space: dict[str, Any]) -> bool:
        return space.keys() == {"low", "high"} and _near(space["low"], self.low) and _near(space["high"], self.high)

    def describe(self) -> str:
        bounds = [f"[{low:g}, {high:g}]" for low, high in zip(self.low, self.high, strict=True)]
        text = f"{bounds[0]} each" if len(set(bounds)) == 1 < len(bounds) else " x ".join(bounds)
        return f"{len(self.low)} number{'s' if len(self.low) > 1 else ''} in {text}"

    def __str__(self) -> str:
        return f"Box({self.describe()})"

    def check(self) -> None:
        _check_shape(self.given_shape, len(self.low))
        if not all(type(bound) is float and math.isfinite(bound) for bound in self.low + self.high):
            raise ValueError(f"bounds {self.low} and {self.high}, allowed are finite floats")
        if len(self.low) != len(self.high) or any(low > high for low, high in zip(self.low, self.high, strict=True)):
            raise ValueError(f"bounds {self.low} and {self.high}, allowed are pairs of a lower and an upper one")
        if self.given_dtype not in FLOATS:
            raise ValueError(f"given_dtype {self.given_dtype!r}, allowed are {', '.join(FLOATS)}")


def split(values: Array, branches: Sequence[int]) -> list[Array]:
    """Splits `values` `[..., Σ branches]` into one array `[..., n]` per branch."""
    return np.split(values, np.cumsum(branches[:-1]), -1)


def has_choice(legal: Array, branches: Sequence[int]) -> Array:
    """Whether each branch has a legal choice, `[...]` bool, for `legal` `[..., Σ branches]` bool."""
    has: Array = np.all([part.any(-1) for part in split(legal, branches)], 0)
    return has


def _near(bounds: Any, expected: Sequence[float]) -> bool:
    """Whether a client's `bounds` are as `expected`; an integer too large for a float can be compared with one."""
    if not isinstance(bounds, list) or [type(bound) in (int, float) for bound in bounds] != [True] * len(expected):
        return False
    tolerances = [TOLERANCE * max(1.0, abs(bound)) for bound in expected]
    return all(b - t <= a <= b + t for a, b, t in zip(bounds, expected, tolerances, strict=True))


def _check_shape(shape: tuple[int, ...], num: int) -> None:
    if any(type(size) is not int or size < 1 for size in shape) or math.prod(shape) != num:
        raise ValueError(f"given_shape {shape} of {num} elements")
