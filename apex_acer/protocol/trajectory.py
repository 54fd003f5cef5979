"""What travels from environments to the loss: the environment's specification, unrolls and batches.

Time-major throughout. N: environments of one actor ("columns"), B: segments of a batch (one column of an unroll each),
k: unroll length, S: `environment.stack`. Torch-free at run time: the manager and the wire read it.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]


DECISIVE = {
    "plane_shape": "the shape of an observation",
    "dtype": "the type of observations",
    "channels_last": "whether channels are last",
    "num_actions": "the number of actions",
    "first_action": "the number of the first action",
}
"""Fields of a specification on which it depends whether a policy can act, in words."""


@dataclass(frozen=True)
class EnvironmentSpec:
    """What the rest of the system knows of an environment."""

    plane_shape: tuple[int, ...]
    """One observation, channel-first for images (`[C, H, W]`), flat for vectors (`[D]`)."""
    dtype: str
    """NumPy name of the observations' type."""
    num_actions: int
    first_action: int
    """Number the environment gives its first action; inside the system actions count from 0."""
    stack: int
    """Newest planes that make one network input, oldest first."""
    channels_last: bool
    """Whether the environment itself gives images as `[H, W, C]`."""
    action_repeat: int
    """Emulator frames per environment step."""
    given_shape: tuple[int, ...]
    """One observation as the environment itself gives it."""

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> EnvironmentSpec:
        """Back from `dataclasses.asdict` by way of JSON, which has no tuples; raises TypeError or ValueError for others."""
        shapes = {name: tuple(values[name]) for name in ("plane_shape", "given_shape")}
        spec = cls(**{**values, **shapes})
        counts = (*spec.plane_shape, *spec.given_shape, spec.num_actions, spec.stack, spec.action_repeat)
        if not spec.plane_shape or any(type(count) is not int or count < 1 for count in counts):
            raise ValueError(f"sizes {counts}, allowed are integers of 1 or more")
        is_number = type(spec.first_action) is int and abs(spec.first_action) < 2**31
        if not is_number or type(spec.channels_last) is not bool:
            raise ValueError(f"first_action {spec.first_action!r}, channels_last {spec.channels_last!r}")
        if (
            not isinstance(spec.dtype, str)
            or spec.dtype not in np.sctypeDict
            or np.dtype(spec.dtype).kind not in "fiub"
        ):
            raise ValueError(f"dtype {spec.dtype!r}, allowed are names of numbers")
        if spec.channels_last and not spec.is_image:
            raise ValueError(f"channels_last, plane_shape {spec.plane_shape}: no image")
        if math.prod(spec.given_shape) != math.prod(spec.plane_shape):
            raise ValueError(f"given_shape {spec.given_shape}, plane_shape {spec.plane_shape}: not as many numbers")
        return spec

    def planes(self, obs: Array, *lead: int) -> Array:
        """Observations `[*lead, *given_shape]` of the environment as planes `[*lead, *plane_shape]`."""
        if self.channels_last:
            return np.moveaxis(obs.reshape(*lead, *self.plane_shape[1:], self.plane_shape[0]), -1, -3)
        return obs.reshape(*lead, *self.plane_shape)

    def describe(self) -> str:
        """What was understood of the environment, in one line."""
        if self.is_image:
            channels, height, width = self.plane_shape
            count = f"{channels} channel{'s' if channels > 1 else ''}"
            order = f", channels {'last' if self.channels_last else 'first'}" if channels > 1 else ""
            seen = f"images of {height} x {width} pixels, {count}{order}"
        else:
            origin = f" (of {list(self.given_shape)})" if len(self.given_shape) > 1 else ""
            seen = f"vectors of {self.plane_shape[0]} number{'s' if self.plane_shape[0] > 1 else ''}{origin}"
        stacked = f", the newest {self.stack} together" if self.stack > 1 else ""
        return f"observations: {seen}, {self.dtype}{stacked}; actions: {self.num_actions}"

    def changes(self, before: EnvironmentSpec) -> str:
        """What differs from `before`, in words; empty if nothing that a policy depends on does."""
        pairs = ((name, getattr(before, name), getattr(self, name)) for name in DECISIVE)
        return ", ".join(f"{DECISIVE[name]} was {old} and is {new}" for name, old, new in pairs if old != new)

    @property
    def obs_shape(self) -> tuple[int, ...]:
        """A network input without its batch dimension: `stack` planes joined along the first axis."""
        return (self.stack * self.plane_shape[0], *self.plane_shape[1:])

    @property
    def is_image(self) -> bool:
        """Whether observations are `[C, H, W]` rather than `[D]`."""
        return len(self.plane_shape) == 3


@dataclass(frozen=True)
class Unroll:
    """k steps of N environments, as an actor ships them."""

    obs: Array
    """`[S-1+k+1, N, *plane]` raw planes; the first S − 1 rebuild the first stack."""
    episode_step: Array
    """`[S-1+k+1, N]` int32, steps since the reset."""
    action: Array
    """`[k, N]` int64."""
    reward: Array
    """`[k, N]` float32, unclipped."""
    terminated: Array
    """`[k, N]` bool; also a lost life in Atari training."""
    truncated: Array
    """`[k, N]` bool."""
    mask: Array
    """`[k, N]` bool, false on a dummy step (the environment was reset on it)."""
    behaviour: dict[str, Array]
    """`[k, N, …]` float32: the whole mu, and under `PRIORITY`, where the algorithm gives it, each step's first priority."""
    state: dict[str, Array]
    """`[N, …]` recurrent state before the first step; empty for feed-forward networks."""

    @property
    def num_columns(self) -> int:
        """N, the segments in this unroll."""
        return int(self.action.shape[1])

    @property
    def num_steps(self) -> int:
        """Environment steps: unmasked ones."""
        return int(np.count_nonzero(self.mask))


@dataclass(frozen=True)
class Layout:
    """Shapes and types of one column of an unroll: what replay stores and the inbox checks."""

    obs: tuple[tuple[int, ...], str]
    episode_step: tuple[tuple[int, ...], str]
    action: tuple[tuple[int, ...], str]
    reward: tuple[tuple[int, ...], str]
    terminated: tuple[tuple[int, ...], str]
    truncated: tuple[tuple[int, ...], str]
    mask: tuple[tuple[int, ...], str]
    behaviour: dict[str, tuple[tuple[int, ...], str]]
    state: dict[str, tuple[tuple[int, ...], str]]

    def check(self, unroll: Unroll, num_columns: int) -> str | None:
        """Why `unroll` does not fit, in one line; None where it does."""
        for part in ("behaviour", "state"):
            found, expected = sorted(getattr(unroll, part)), sorted(getattr(self, part))
            if found != expected:
                return f"{part}: keys {found}, expected {expected}"
        arrays = {name: getattr(unroll, name) for name in ARRAY_FIELDS} | unroll.behaviour
        for name, ((length, *rest), dtype) in self._steps.items():
            if problem := _misfit(name, arrays[name], (length, num_columns, *rest), dtype):
                return problem
        states = (
            (name, unroll.state[name], (num_columns, *shape), dtype) for name, (shape, dtype) in self.state.items()
        )
        return next((problem for state in states if (problem := _misfit(*state))), None)

    @functools.cached_property
    def _steps(self) -> dict[str, tuple[tuple[int, ...], str]]:
        return {name: getattr(self, name) for name in ARRAY_FIELDS} | self.behaviour


Shapes = dict[str, tuple[int, ...]]
PRIORITY = "priority"
ARRAY_FIELDS = ("obs", "episode_step", "action", "reward", "terminated", "truncated", "mask")


def _misfit(name: str, array: Array, shape: tuple[int, ...], dtype: str) -> str | None:
    if array.shape == shape and array.dtype == dtype:
        return None
    return f"{name}: {array.dtype}{list(array.shape)}, expected {dtype}{list(shape)}"


def layout(spec: EnvironmentSpec, unroll_length: int, behaviour: Shapes, state: Shapes | None = None) -> Layout:
    """The layout of a column, without the column axis.

    `behaviour` maps names to the shapes after `[k]`, `state` to whole shapes.
    """
    k, planes = unroll_length, spec.stack + unroll_length
    return Layout(
        obs=((planes, *spec.plane_shape), spec.dtype),
        episode_step=((planes,), "int32"),
        action=((k,), "int64"),
        reward=((k,), "float32"),
        terminated=((k,), "bool"),
        truncated=((k,), "bool"),
        mask=((k,), "bool"),
        behaviour={name: ((k, *shape), "float32") for name, shape in behaviour.items()},
        state={name: (shape, "float32") for name, shape in (state or {}).items()},
    )


@dataclass(frozen=True)
class Batch:
    """B segments on the learner's device; the fields are an `Unroll`'s with B in place of N."""

    obs: torch.Tensor
    episode_step: torch.Tensor
    action: torch.Tensor
    reward: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    mask: torch.Tensor
    behaviour: dict[str, torch.Tensor]
    state: dict[str, torch.Tensor]
    weights_version: torch.Tensor
    """`[B]` int64, the version the segment was acted with."""
    fresh: torch.Tensor
    """`[B]` bool, whether the segment is trained on for the first time."""
    importance: torch.Tensor
    """`[B]` float32, the weight of each segment in the loss; 1 where all are drawn alike."""


def split(batch: Batch, num_parts: int) -> list[Batch]:
    """Parts of `batch` with nearly as many segments each, views of it; there may be fewer than asked for."""

    def parts(name: str, value: Any) -> list[Any]:
        if isinstance(value, dict):
            chunks = {key: tensor.chunk(num_parts, int(name == "behaviour")) for key, tensor in value.items()}
            return [{key: chunk[i] for key, chunk in chunks.items()} for i in range(count)]
        return list(value.chunk(num_parts, int(value.ndim > 1)))

    count = len(batch.fresh.chunk(num_parts))
    fields = {name: parts(name, value) for name, value in vars(batch).items()}
    return [Batch(**{name: values[i] for name, values in fields.items()}) for i in range(count)]
