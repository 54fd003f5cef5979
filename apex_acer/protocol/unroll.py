"""Experience on its way from environments to the loss: unrolls, their layout, and batches.

All arrays are time-major. N: environments of one actor, one sequence (column) each; B: sequences of a
batch; k: unroll length; S: `environment.stack`. Torch-free at run time, because the manager imports it.
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
    """k steps of N environments, as an actor sends them: N sequences."""

    obs: Array
    """`[S-1+k+1, N, *plane]` raw planes; the first S − 1 complete the first frame stack."""
    episode_step: Array
    """`[S-1+k+1, N]` int32, steps since the reset, or since a life began in Atari, at each observation."""
    action: Array
    """`[k, N]` int64 for `Discrete` actions, `[k, N, d]` float32 in [−1, 1] for a `Box`, `[k, N, 1 + d]` for both."""
    reward: Array
    """`[k, N]` float32, unclipped."""
    terminated: Array
    """`[k, N]` bool; includes lost lives in Atari training."""
    truncated: Array
    """`[k, N]` bool."""
    mask: Array
    """`[k, N]` bool, false on an autoreset step, on which the environment was reset, and on others not to learn from."""
    extras: dict[str, Array]
    """`[k, N, …]` float32: what the algorithm records besides, such as μ or each step's initial priority (`PRIORITY`)."""
    state: dict[str, Array]
    """`[N, …]` float32: recurrent state of the policy before the first step; empty without memory."""

    @property
    def num_columns(self) -> int:
        """N, the number of sequences."""
        return int(self.action.shape[1])

    @property
    def num_steps(self) -> int:
        """Environment steps to learn from."""
        return int(np.count_nonzero(self.mask))

    def refusal(self, spec: EnvironmentSpec) -> str:
        """Why its numbers cannot be learned from, in one line; empty if they can."""
        if problem := spec.actions.refusal(self.action):
            return problem
        observed = {"reward": self.reward, **unpack(spec, self.obs, spec.float_parts)}
        if self.obs.dtype.kind == "f":
            observed["obs"] = self.obs
        floats = observed | self.extras | self.state
        if problem := next((name for name, array in floats.items() if not np.isfinite(array).all()), ""):
            return f"{problem}: not finite"
        if problem := next((name for name, array in observed.items() if unusable(array)), ""):
            return f"{problem}: up to {np.abs(observed[problem]).max():g}, allowed is a magnitude of {LARGEST:g}"
        return "priority: negative" if PRIORITY in floats and floats[PRIORITY].min() < 0 else ""


Kind = tuple[tuple[int, ...], str]
"""Shape of an array, and NumPy name of its type."""
Shapes = dict[str, tuple[int, ...]]
PRIORITY = "priority"
ARRAY_FIELDS = ("obs", "episode_step", "action", "reward", "terminated", "truncated", "mask")


@dataclass(frozen=True)
class Layout:
    """Shapes and types of one sequence, an unroll without its axis N, as replay stores it and the inbox checks it."""

    obs: Kind
    episode_step: Kind
    action: Kind
    reward: Kind
    terminated: Kind
    truncated: Kind
    mask: Kind
    extras: dict[str, Kind]
    state: dict[str, Kind]

    @property
    def fields(self) -> dict[str, Kind]:
        """Shape and type of each array by its name in replay, such as `extras.priority`."""
        extras = {f"extras.{name}": kind for name, kind in self.extras.items()}
        state = {f"state.{name}": kind for name, kind in self.state.items()}
        return {name: getattr(self, name) for name in ARRAY_FIELDS} | extras | state

    def check(self, unroll: Unroll, num_columns: int) -> str | None:
        """Why `unroll` does not fit, in one line; None if it does."""
        for part in ("extras", "state"):
            names, expected = sorted(getattr(unroll, part)), sorted(getattr(self, part))
            if names != expected:
                return f"{part}: keys {names}, expected {expected}"
        arrays = {name: getattr(unroll, name) for name in ARRAY_FIELDS} | unroll.extras
        steps = [
            (name, arrays[name], (k, num_columns, *rest), dtype) for name, ((k, *rest), dtype) in self._steps.items()
        ]
        states = [
            (name, unroll.state[name], (num_columns, *shape), dtype) for name, (shape, dtype) in self.state.items()
        ]
        for name, array, shape, dtype in steps + states:
            if array.shape != shape or array.dtype != dtype:
                return f"{name}: {array.dtype}{list(array.shape)}, expected {dtype}{list(shape)}"
        return None

    @functools.cached_property
    def _steps(self) -> dict[str, Kind]:
        return {name: getattr(self, name) for name in ARRAY_FIELDS} | self.extras


def layout(spec: EnvironmentSpec, unroll_length: int, extras: Shapes, state: Shapes | None = None) -> Layout:
    """The layout of a run's sequences; the shapes of `extras` lack their first axis, k."""
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
    """B sequences on the learner's device; `Unroll` describes the fields, with N instead of B."""

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
    """`[B]` int64, version of the weights that acted."""
    fresh: torch.Tensor
    """`[B]` bool, whether a sequence is trained on for the first time."""
    importance: torch.Tensor
    """`[B]` float32, importance weight of each sequence in the loss; 1 for uniform replay."""

    @property
    def stack(self) -> int:
        """S, the frame stack."""
        return len(self.obs) - len(self.mask)


def take_rows(field: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Gathers `field` `[m, n, …]` at `rows` `[…]`, where row i * n + j is `field[i, j]`.

    For planes of bytes, copies of whole rows are twenty times as fast as indexing with i and j.
    """
    return field.flatten(0, 1).index_select(0, rows.flatten()).view(*rows.shape, *field.shape[2:])
