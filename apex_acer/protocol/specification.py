"""The specification of an environment: the shape and type of its observations and its actions. Torch-free."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from apex_acer.protocol.actions import Actions, Box, Choices, actions_from_dict
from apex_acer.protocol.actions import Array as Array

DECISIVE = {
    "plane_shape": "the shape of an observation",
    "dtype": "the type of observations",
    "channels_last": "whether channels are last",
    "actions": "the action space",
}
"""The fields that must not change if a policy is to act in the environment, in words."""


@dataclass(frozen=True)
class EnvironmentSpec:
    """What the rest of the program knows about an environment."""

    plane_shape: tuple[int, ...]
    """Shape of one observation: channel-first for images (`[C, H, W]`), flat for vectors (`[D]`)."""
    dtype: str
    """NumPy name of the observations' type."""
    actions: Actions
    stack: int
    """Number of newest planes in one network input, oldest first."""
    channels_last: bool
    """Whether the environment itself gives images as `[H, W, C]`."""
    action_repeat: int
    """Emulator frames per environment step."""
    given_shape: tuple[int, ...]
    """Shape of one observation as the environment itself gives it."""

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> EnvironmentSpec:
        """The specification from `dataclasses.asdict` of one, also by way of JSON; raises TypeError or ValueError."""
        shapes = {name: tuple(values[name]) for name in ("plane_shape", "given_shape")}
        spec = cls(**{**values, **shapes, "actions": actions_from_dict(values["actions"])})
        counts = (*spec.plane_shape, *spec.given_shape, spec.stack, spec.action_repeat)
        if not spec.plane_shape or any(type(count) is not int or count < 1 for count in counts):
            raise ValueError(f"sizes {counts}, allowed are integers of 1 or more")
        if type(spec.channels_last) is not bool:
            raise ValueError(f"channels_last {spec.channels_last!r}")
        is_name = isinstance(spec.dtype, str) and spec.dtype in np.sctypeDict
        if not is_name or np.dtype(spec.dtype).kind not in "fiub":
            raise ValueError(f"dtype {spec.dtype!r}, allowed are names of numeric types")
        if spec.channels_last and not spec.is_image:
            raise ValueError(f"channels_last, plane_shape {spec.plane_shape}: not an image")
        if math.prod(spec.given_shape) != math.prod(spec.plane_shape):
            raise ValueError(f"given_shape {spec.given_shape}, plane_shape {spec.plane_shape}: sizes differ")
        return spec

    def planes(self, obs: Array, *lead: int) -> Array:
        """The environment's observations `[*lead, *given_shape]` as planes `[*lead, *plane_shape]`."""
        if self.channels_last:
            return np.moveaxis(obs.reshape(*lead, *self.plane_shape[1:], self.plane_shape[0]), -1, -3)
        return obs.reshape(*lead, *self.plane_shape)

    def describe(self) -> str:
        """The observations and actions in one line of text."""
        if self.is_image:
            channels, height, width = self.plane_shape
            count = f"{channels} channel{'s' if channels > 1 else ''}"
            order = f", channels {'last' if self.channels_last else 'first'}" if channels > 1 else ""
            seen = f"images of {height} x {width} pixels, {count}{order}"
        else:
            origin = f" (of {list(self.given_shape)})" if len(self.given_shape) > 1 else ""
            seen = f"vectors of {self.plane_shape[0]} number{'s' if self.plane_shape[0] > 1 else ''}{origin}"
        stacked = f", the newest {self.stack} together" if self.stack > 1 else ""
        return f"observations: {seen}, {self.dtype}{stacked}; actions: {self.actions.describe()}"

    def changes(self, before: EnvironmentSpec) -> str:
        """The differences from `before` that a policy depends on, in words; empty if there are none."""
        pairs = ((name, getattr(before, name), getattr(self, name)) for name in DECISIVE)
        return ", ".join(f"{DECISIVE[name]} was {old} and is {new}" for name, old, new in pairs if old != new)

    @property
    def obs_shape(self) -> tuple[int, ...]:
        """Shape of a network input without its batch dimension: `stack` planes joined along the first axis."""
        return (self.stack * self.plane_shape[0], *self.plane_shape[1:])

    @property
    def num_actions(self) -> int:
        """A, the number of discrete actions, or of combinations of choices."""
        assert isinstance(self.actions, Choices)
        return self.actions.n

    @property
    def action_dim(self) -> int:
        """d, the number of numbers in a continuous action."""
        assert isinstance(self.actions, Box)
        return len(self.actions.low)

    @property
    def is_image(self) -> bool:
        """Whether observations are `[C, H, W]` rather than `[D]`."""
        return len(self.plane_shape) == 3
