"""The specification of an environment: the shape and type of its observations and its actions. Torch-free."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from apex_acer.protocol.actions import Actions
from apex_acer.protocol.actions import Array as Array
from apex_acer.protocol.composite import actions_from_dict

DECISIVE = {
    "plane_shape": "the shape of an observation",
    "dtype": "the type of observations",
    "channels_last": "whether channels are last",
    "choices": "the choices of an observation",
    "first": "the first choice",
    "actions": "the action space",
}
"""The fields that must be equal for a policy to act in another environment, in words."""
SHAPES = "plane_shape", "given_shape", "choices", "first"
MASK = "action_mask"  # the part of an observation that says which choices are legal
LARGEST = 1e15
"""Largest magnitude of rewards and observations; the sum of a thousand can still be squared in float32."""
ONE_HOT = "int8"  # the type of one-hot planes, which networks do not scale as they do the uint8 of pixels


@dataclass(frozen=True)
class Part:
    """One array of a `Dict` or `Tuple` observation; `EnvironmentSpec` describes the fields."""

    name: str
    """Key in the `Dict` or index in the `Tuple`; `outer.inner` in nested ones."""
    plane_shape: tuple[int, ...]
    dtype: str
    channels_last: bool
    given_shape: tuple[int, ...]
    choices: tuple[int, ...] = ()
    first: tuple[int, ...] = ()


@dataclass(frozen=True)
class EnvironmentSpec:
    """Observations and actions of an environment.

    A plane is one observation as unrolls and replay hold it; of `parts` it has the bytes of all planes in their order.
    """

    plane_shape: tuple[int, ...]
    """Shape of a plane: channel-first for images (`[C, H, W]`), flat for vectors (`[D]`) and packed bytes."""
    dtype: str
    """NumPy name of the planes' type."""
    actions: Actions
    stack: int
    """Frame stack: number of newest planes in one network input, oldest first."""
    channels_last: bool
    """Whether the environment itself gives images as `[H, W, C]`."""
    action_repeat: int
    """Emulator frames per environment step."""
    given_shape: tuple[int, ...]
    """Shape of one observation as the environment itself gives it."""
    choices: tuple[int, ...] = ()
    """Number of choices of each element of a `Discrete` or `MultiDiscrete` observation, whose plane is one-hot."""
    first: tuple[int, ...] = ()
    """The environment's number of the first choice of each element."""
    parts: tuple[Part, ...] = ()
    """The arrays of a `Dict` or `Tuple` observation; empty for other observations."""
    masks_in_info: bool = False
    """Whether the mask of legal actions comes from `info["action_mask"]` instead of from a part of the observation."""
    agents: int = 1
    """Number of agents of a game, each of which has a column of an unroll."""
    takes_turns: bool = False
    """Whether two players take turns, of whom one has a column and an opponent moves for the other."""

    @classmethod
    def of_parts(cls, parts: tuple[Part, ...], actions: Actions, stack: int, action_repeat: int) -> EnvironmentSpec:
        """The specification of an environment whose observations have these parts."""
        row = (sum(_num_bytes(part) for part in parts),)
        return cls(row, "uint8", actions, stack, False, action_repeat, row, parts=parts)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> EnvironmentSpec:
        """The specification from its `dataclasses.asdict`, or from that by way of JSON; raises TypeError or ValueError."""
        parts = tuple(Part(**{**part, **_tuples(part)}) for part in values.get("parts", ()))
        actions = actions_from_dict(values["actions"])
        spec = cls(**{**values, **_tuples(values), "actions": actions, "parts": parts})
        for box in (*spec.boxes.values(), spec):
            box._check()
        names = [part.name for part in parts]
        if len(set(names)) < len(names) or not all(isinstance(name, str) and name for name in names):
            raise ValueError(f"parts {names}, allowed are different names")
        if spec.has_masks and spec.boxes[MASK].plane_shape != (spec.num_choices,):
            raise ValueError(f"{MASK} {spec.boxes[MASK].plane_shape} for {spec.num_choices} choices")
        if type(spec.masks_in_info) is not bool or (spec.masks_in_info and not spec.has_masks):
            raise ValueError(f"masks_in_info {spec.masks_in_info!r}, parts {names}")
        row = (sum(box.num_bytes for box in spec.boxes.values()),)
        if parts and (spec.plane_shape, spec.dtype) != (row, "uint8"):
            raise ValueError(f"{spec.dtype}{list(spec.plane_shape)} of parts, allowed is uint8{list(row)}")
        return spec

    def _check(self) -> None:
        """Raises ValueError if the fields do not fit each other."""
        counts = (*self.plane_shape, *self.given_shape, *self.choices, self.stack, self.action_repeat, self.agents)
        if not self.plane_shape or any(type(count) is not int or count < 1 for count in counts):
            raise ValueError(f"sizes {counts}, allowed are integers of 1 or more")
        if type(self.channels_last) is not bool or type(self.takes_turns) is not bool:
            raise ValueError(f"channels_last {self.channels_last!r}, takes_turns {self.takes_turns!r}")
        is_name = isinstance(self.dtype, str) and self.dtype in np.sctypeDict
        if not is_name or np.dtype(self.dtype).kind not in "fiub":
            raise ValueError(f"dtype {self.dtype!r}, allowed are names of numeric types")
        if self.channels_last and not self.is_image:
            raise ValueError(f"channels_last, plane_shape {self.plane_shape}: not an image")
        numbers = math.prod(self.plane_shape)
        if self.choices:
            if self.plane_shape != (sum(self.choices),) or self.dtype != ONE_HOT:
                raise ValueError(f"choices {self.choices}, {self.dtype}{list(self.plane_shape)}: not one-hot")
            numbers = len(self.choices)
        if math.prod(self.given_shape) != numbers:
            raise ValueError(f"given_shape {self.given_shape}, plane_shape {self.plane_shape}: sizes differ")
        if len(self.first) != len(self.choices) or any(type(n) is not int or abs(n) >= 2**31 for n in self.first):
            raise ValueError(f"first {self.first}, allowed is an integer for each of choices {self.choices}")

    @functools.cached_property
    def boxes(self) -> dict[str, EnvironmentSpec]:
        """For each part by name, the specification of an environment whose observations are this part alone."""
        alone = dataclasses.replace(self, parts=(), masks_in_info=False)
        fields = [{**vars(part)} for part in self.parts]
        return {values.pop("name"): dataclasses.replace(alone, **values) for values in fields}

    def describe(self) -> str:
        """The observations and actions in one line of text."""
        stacked = f", the newest {self.stack} together" if self.stack > 1 else ""
        agents = (
            f"{self.agents} agents; " if self.agents > 1 else "two players take turns; " if self.takes_turns else ""
        )
        return f"{agents}observations: {self.describe_planes()}{stacked}; actions: {self.actions.describe()}"

    def describe_planes(self) -> str:
        """One plane in words."""
        if self.parts:
            words = [f"{name} ({box.describe_planes()})" for name, box in self.seen.items()]
            return ", ".join([*words, *(["a mask of legal actions"] if self.has_masks else [])])
        if self.choices:
            return f"{self._describe_choices()}, one-hot"
        if self.is_image:
            channels, height, width = self.plane_shape
            count = f"{channels} channel{'s' if channels > 1 else ''}"
            order = f", channels {'last' if self.channels_last else 'first'}" if channels > 1 else ""
            return f"images of {height} x {width} pixels, {count}{order}, {self.dtype}"
        origin = f" (of {list(self.given_shape)})" if len(self.given_shape) > 1 else ""
        return f"vectors of {self.plane_shape[0]} number{'s' if self.plane_shape[0] > 1 else ''}{origin}, {self.dtype}"

    def _describe_choices(self) -> str:
        ranges = [f"{low} to {low + count - 1}" for low, count in zip(self.first, self.choices, strict=True)]
        return f"an integer from {ranges[0]}" if len(ranges) == 1 else f"integers from {', '.join(ranges)}"

    def changes(self, before: EnvironmentSpec) -> str:
        """The differences from `before` that a policy depends on, in words; empty if there are none."""
        names = ["actions"] if self.parts or before.parts else list(DECISIVE)
        pairs = [(DECISIVE[name], getattr(before, name), getattr(self, name)) for name in names]
        changes = [f"{what} was {old} and is {new}" for what, old, new in pairs if old != new]
        old, new = before.describe_planes(), self.describe_planes()
        if len(names) == 1 and (before.parts, old) != (self.parts, new):
            changes.insert(0, f"the observation was {old} and is {new}")
        return ", ".join(changes)

    @property
    def obs_shape(self) -> tuple[int, ...]:
        """Shape of a raw network input without its batch dimension: `stack` planes joined along the first axis."""
        return (self.stack * self.plane_shape[0], *self.plane_shape[1:])

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of a torso's input without its batch dimension: `obs_shape`, or `[D]` for parts.

        Parts are flattened and concatenated; the newest mask comes last, if there are masks.
        """
        seen = sum(math.prod(box.obs_shape) for box in self.seen.values())
        return (seen + (self.num_choices if self.has_masks else 0),) if self.parts else self.obs_shape

    @functools.cached_property
    def seen(self) -> dict[str, EnvironmentSpec]:
        """The specifications in `boxes` that a torso sees: all but the mask's."""
        return {name: box for name, box in self.boxes.items() if name != MASK or not self.has_masks}

    @functools.cached_property
    def has_masks(self) -> bool:
        """Whether observations contain a mask of legal actions."""
        return bool(self.actions.branches) and any(part.name == MASK for part in self.parts)

    @property
    def num_choices(self) -> int:
        """Σ branches: the number of choices of all branches together, and of numbers in a mask."""
        return sum(self.actions.branches)

    @functools.cached_property
    def float_parts(self) -> tuple[str, ...]:
        """Names of the parts whose type is a float."""
        return tuple(name for name, box in self.boxes.items() if np.dtype(box.dtype).kind == "f")

    @functools.cached_property
    def num_bytes(self) -> int:
        """Number of bytes of a plane."""
        return _num_bytes(self)

    @property
    def given_dtype(self) -> str:
        """NumPy name of the type of observations as the environment gives them."""
        return "int64" if self.choices else self.dtype

    def refusal(self, obs: Array) -> str:
        """Why observations `[..., *given_shape]` are outside the `choices`, in one line; empty if they are allowed."""
        chosen = obs.reshape(-1, max(1, len(self.choices))) - np.asarray(self.first or 0)
        beyond = self.choices and ((chosen < 0) | (chosen >= self.choices)).any()
        return f"observation {obs.tolist()}, allowed is {self._describe_choices()}" if beyond else ""

    @property
    def num_actions(self) -> int:
        """A, the number of discrete actions, or of combinations of choices."""
        return self.actions.n

    @property
    def action_dim(self) -> int:
        """d, the number of dimensions of a continuous action."""
        return self.actions.dim

    @property
    def is_image(self) -> bool:
        """Whether observations are `[C, H, W]` rather than `[D]`."""
        return len(self.plane_shape) == 3

    @property
    def has_images(self) -> bool:
        """Whether observations are images or have an image among their parts."""
        return self.is_image or any(len(part.plane_shape) == 3 for part in self.parts)


def unusable(values: Array) -> str:
    """Names the first of the floats `values` that is beyond `LARGEST` or not finite, and the limit; empty: there is none."""
    if np.abs(values).max(initial=0) <= LARGEST:  # false for NaN, too
        return ""
    return f"{values[~(np.abs(values) <= LARGEST)].ravel()[0]:g}, allowed is a magnitude of {LARGEST:g}"


def _num_bytes(plane: Part | EnvironmentSpec) -> int:
    return math.prod(plane.plane_shape) * np.dtype(plane.dtype).itemsize


def _tuples(values: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {name: tuple(values[name]) for name in SHAPES if name in values}
