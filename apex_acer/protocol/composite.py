"""Several action spaces at once, the leaves of a `Dict` or `Tuple`; and an action space from a file. Torch-free."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from apex_acer.protocol.actions import Actions, Array, Box, Choices, Discrete, MultiDiscrete

MAX_EXACT = 2**53  # combinations of choices; integers below it are exact in float64


@dataclass(frozen=True)
class Composite(Actions):
    """Named parts with choices, numbers, or both: `Hybrid` actions.

    A policy's action is the number of the combination of all choices, as of one `MultiDiscrete`, followed by all numbers, as
    of one `Box`. The environment takes dictionaries and tuples of the parts' actions.
    """

    names: tuple[str, ...]
    """Names of the parts, the keys on the way to each: `outer.inner`; keys of a `Tuple` are 0, 1, …"""
    parts: tuple[Actions, ...]
    """`Discrete`, `MultiDiscrete` or `Box` each."""

    given_shape = ()
    given_dtype = ""

    @property
    def n(self) -> int:  # type: ignore[override]
        return math.prod(self.branches) if self.branches else 0

    @functools.cached_property
    def branches(self) -> tuple[int, ...]:
        return tuple(n for part in self.parts for n in part.branches)

    @functools.cached_property
    def dim(self) -> int:
        return sum(part.dim for part in self.parts)

    @functools.cached_property
    def _halves(self) -> tuple[MultiDiscrete, Box]:
        """All choices, and all numbers; either may be empty."""
        num, dim = len(self.branches), self.dim
        choices = MultiDiscrete(self.branches, (0,) * num, (num,), "int64")
        return choices, Box((-1.0,) * dim, (1.0,) * dim, (dim,), "float64")

    def _split(self, action: Array) -> tuple[Array, Array]:
        """The number of the combination, `[..., 1]` or `[..., 0]` without choices, and the numbers `[..., d]`."""
        columns = action if self.dim else action[..., None]
        first = int(self.n > 0)
        return columns[..., :first], columns[..., first:]

    def refusal(self, action: Array) -> str:
        combination, numbers = self._split(action)
        if (combination != np.floor(combination)).any():
            return "action: a choice that is no integer"
        pairs = zip(self._halves, (combination, numbers), strict=True)
        return next((line for half, values in pairs if values.shape[-1] and (line := half.refusal(values))), "")

    def sample(self, rng: np.random.Generator, *size: int, legal: Array | None = None) -> Array:
        halves = [half for half, num in zip(self._halves, (self.n, self.dim), strict=True) if num]
        drawn = [half.sample(rng, *size, legal=legal).reshape(*size, half.dim or 1) for half in halves]
        return np.concatenate(drawn, -1).astype(self.dtype).reshape(*size, *self.shape)

    def to_environment(self, action: Array) -> Any:
        """Converts a policy's actions `[N, *shape]` to dictionaries and tuples of the parts' actions `[N, …]`."""
        combination, numbers = self._split(action)
        choices = self._halves[0].to_environment(combination.astype(np.int64))  # [N, branches]
        actions = []
        for part in self.parts:
            if isinstance(part, Choices):
                mine, choices = np.split(choices, [len(part.branches)], -1)
                actions.append(part.to_environment(part.combine(mine)))
            else:
                mine, numbers = np.split(numbers, [part.dim], -1)
                actions.append(part.to_environment(mine))
        return nest(self.names, actions)

    def for_user(self, actions: Any) -> Any:
        pairs = zip(self.parts, flatten(actions), strict=True)
        return nest(self.names, [part.for_user(own) for part, own in pairs])

    def client_space(self) -> dict[str, Any]:
        return {}

    def fits(self, space: dict[str, Any]) -> bool:
        del space
        return False

    def describe(self) -> str:
        return ", ".join(f"{name} ({part.describe()})" for name, part in zip(self.names, self.parts, strict=True))

    def __str__(self) -> str:
        return f"{self.kind}({self.describe()})"

    def check(self) -> None:
        are_words = all(isinstance(name, str) and all(name.split(".")) for name in self.names)
        if not self.names or len(self.names) != len(self.parts) or not are_words:
            raise ValueError(f"names {self.names} of {len(self.parts)} parts, allowed is one word or more for each")
        if len({*self.names}) < len(self.names) or any(a.startswith(f"{b}.") for a in self.names for b in self.names):
            raise ValueError(f"names {self.names}, allowed are different ones, none of which holds another")
        if self.n > MAX_EXACT:
            raise ValueError(f"{self}, allowed are at most 2^53 combinations of choices")


KINDS: dict[str, type[Actions]] = {"n": Discrete, "nvec": MultiDiscrete, "low": Box}
"""Classes of single action spaces, by a field that only the class has."""


def actions_from_dict(values: dict[str, Any]) -> Actions:
    """The action space from its `dataclasses.asdict`, or from that by way of JSON; raises TypeError or ValueError."""
    if not isinstance(values, dict) or "parts" not in values:
        return _single(values)
    return _checked(Composite, {**values, "parts": [_single(part) for part in values["parts"]]})


def _single(values: dict[str, Any]) -> Actions:
    kind = next((kind for key, kind in KINDS.items() if isinstance(values, dict) and key in values), None)
    if kind is None:
        raise TypeError(f"actions {values!r}, allowed is a table with one of {', '.join(KINDS)}, parts")
    return _checked(kind, values)


def _checked(kind: type[Actions], values: dict[str, Any]) -> Actions:
    actions: Actions = kind(**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})
    actions.check()
    return actions


def nest(names: Sequence[str], values: Sequence[Any]) -> Any:
    """The values in nested dictionaries and tuples by their `names`; a tuple's keys are numbers."""
    if [*names] == [""]:
        return values[0]
    inner: dict[str, list[tuple[str, Any]]] = {}
    for name, value in zip(names, values, strict=True):
        key, _, rest = name.partition(".")
        inner.setdefault(key, []).append((rest, value))
    nested = {key: nest(*zip(*pairs, strict=True)) for key, pairs in inner.items()}
    return tuple(nested.values()) if names[0].partition(".")[0].isdigit() else nested


def flatten(nested: Any) -> Iterable[Any]:
    """The values in nested dictionaries and tuples, in order."""
    if not isinstance(nested, dict | tuple):
        return [nested]
    inner = nested.values() if isinstance(nested, dict) else nested
    return [value for each in inner for value in flatten(each)]
