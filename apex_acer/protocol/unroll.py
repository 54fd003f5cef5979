"""Experience on its way from environments to the loss: unrolls, their layout, and batches.

All arrays are time-major. N: environments of one actor ("columns"), B: sequences of a batch (one column of an unroll each),
k: unroll length, S: `environment.stack`. Torch-free at run time, because the manager imports it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from apex_acer.protocol.planes import unpack
from apex_acer.protocol.specification import LARGEST, Array, EnvironmentSpec, unusable

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Unroll:
    """k steps of N environments, as an actor sends them."""

    obs: Array
    """`[S-1+k+1, N, *plane]` raw planes; the first S − 1 complete the first stack."""
    episode_step: Array
    """`[S-1+k+1, N]` int32, steps since the reset."""
    action: Array
    """`[k, N]` int64 for `Discrete` actions, `[k, N, d]` float32 in [−1, 1] for a `Box`."""
    reward: Array
    """`[k, N]` float32, unclipped."""
    terminated: Array
    """`[k, N]` bool; also a lost life in Atari training."""
    truncated: Array
    """`[k, N]` bool."""
    mask: Array
    """`[k, N]` bool, false on an autoreset step (the environment was reset on it)."""
    extras: dict[str, Array]
    """`[k, N, …]` float32: mu of all actions, or under `PRIORITY` each step's first priority, as the algorithm has it."""
    state: dict[str, Array]
    """`[N, …]` what the policy remembers of the episode before the first step, such as an LSTM's state; may be empty."""

    @property
    def num_columns(self) -> int:
        """N, the number of sequences in this unroll."""
        return int(self.action.shape[1])

    @property
    def num_steps(self) -> int:
        """Environment steps, autoreset steps not counted."""
        return int(np.count_nonzero(self.mask))

    def refusal(self, spec: EnvironmentSpec) -> str:
        """Why its numbers cannot be learned from, in one line; empty if they can."""
        if problem := spec.actions.refusal(self.action):
            return problem
        given = {"reward": self.reward, **unpack(spec, self.obs, spec.float_parts)}
        if self.obs.dtype.kind == "f":
            given["obs"] = self.obs
        floats = given | self.extras | self.state
        if problem := next((name for name, array in floats.items() if not np.isfinite(array).all()), ""):
            return f"{problem}: not finite"
        if problem := next((name for name, array in given.items() if unusable(array)), ""):
            return f"{problem}: up to {np.abs(given[problem]).max():g}, allowed is a magnitude of {LARGEST:g}"
        return "priority: negative" if PRIORITY in floats and floats[PRIORITY].min() < 0 else ""


@dataclass(frozen=True)
class Layout:
    """Shapes and types of one column of an unroll, which replay stores and the inbox checks."""

    obs: tuple[tuple[int, ...], str]
    episode_step: tuple[tuple[int, ...], str]
    action: tuple[tuple[int, ...], str]
    reward: tuple[tuple[int, ...], str]
    terminated: tuple[tuple[int, ...], str]
    truncated: tuple[tuple[int, ...], str]
    mask: tuple[tuple[int, ...], str]
    extras: dict[str, tuple[tuple[int, ...], str]]
    state: dict[str, tuple[tuple[int, ...], str]]

    @property
    def fields(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and type of each array by the name that replay has for it, such as `extras.priority`."""
        parts = {"extras": self.extras, "state": self.state}
        named = {f"{part}.{name}": kind for part, kinds in parts.items() for name, kind in kinds.items()}
        return {name: getattr(self, name) for name in ARRAY_FIELDS} | named

    def check(self, unroll: Unroll, num_columns: int) -> str | None:
        """Why `unroll` does not fit, in one line; None if it does."""
        for part in ("extras", "state"):
            found, expected = sorted(getattr(unroll, part)), sorted(getattr(self, part))
            if found != expected:
                return f"{part}: keys {found}, expected {expected}"
        arrays = {name: getattr(unroll, name) for name in ARRAY_FIELDS} | unroll.extras
        for name, ((length, *rest), dtype) in self._steps.items():
            if problem := _misfit(name, arrays[name], (length, num_columns, *rest), dtype):
                return problem
        for name, (shape, dtype) in self.state.items():
            if problem := _misfit(name, unroll.state[name], (num_columns, *shape), dtype):
                return problem
        return None

    @functools.cached_property
    def _steps(self) -> dict[str, tuple[tuple[int, ...], str]]:
        return {name: getattr(self, name) for name in ARRAY_FIELDS} | self.extras


Shapes = dict[str, tuple[int, ...]]
PRIORITY = "priority"
ARRAY_FIELDS = ("obs", "episode_step", "action", "reward", "terminated", "truncated", "mask")


def _misfit(name: str, array: Array, shape: tuple[int, ...], dtype: str) -> str | None:
    if array.shape == shape and array.dtype == dtype:
        return None
    return f"{name}: {array.dtype}{list(array.shape)}, expected {dtype}{list(shape)}"


def layout(spec: EnvironmentSpec, unroll_length: int, extras: Shapes, state: Shapes | None = None) -> Layout:
    """The layout of a column without its axis; `extras` has the shapes after `[k]`, `state` whole shapes."""
    k, planes = unroll_length, spec.stack + unroll_length
    return Layout(
        obs=((planes, *spec.plane_shape), spec.dtype),
        episode_step=((planes,), "int32"),
        action=((k, *spec.actions.shape), spec.actions.dtype),
        reward=((k,), "float32"),
        terminated=((k,), "bool"),
        truncated=((k,), "bool"),
        mask=((k,), "bool"),
        extras={name: ((k, *shape), "float32") for name, shape in extras.items()},
        state={name: (shape, "float32") for name, shape in (state or {}).items()},
    )


@dataclass(frozen=True)
class Batch:
    """B sequences on the learner's device; the fields are an `Unroll`'s with B in place of N."""

    obs: torch.Tensor
    episode_step: torch.Tensor
    action: torch.Tensor
    reward: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    mask: torch.Tensor
    extras: dict[str, torch.Tensor]
    state: dict[str, torch.Tensor]
    weights_version: torch.Tensor
    """`[B]` int64, the version of the weights that the sequence was acted with."""
    fresh: torch.Tensor
    """`[B]` bool, whether the sequence is trained on for the first time."""
    importance: torch.Tensor
    """`[B]` float32, the weight of each sequence in the loss; 1 if replay is uniform."""

    @property
    def stack(self) -> int:
        """S."""
        return len(self.obs) - len(self.mask)


def take_rows(field: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """What `field` `[m, n, …]` has at `rows` `[…]`, counted as i * n + j.

    Each row is copied as a whole, which is twenty times as fast for planes of bytes as two indices, `field[i, j]`.
    """
    return field.flatten(0, 1).index_select(0, rows.flatten()).view(*rows.shape, *field.shape[2:])
