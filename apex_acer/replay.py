"""Replay memory: arrays of segments, no I/O."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from apex_acer.device import CPU
from apex_acer.trajectory import ARRAY_FIELDS, Array, Batch, Layout, Unroll


class UniformReplay:
    """A ring of segments (single planes, not stacks), sampled uniformly with replacement.

    Memory is taken as it fills: a segment of 20 Atari steps with a stack of 4 holds 24 planes, 1.2 per step.
    """

    def __init__(self, layout: Layout, capacity: int, seed: int, device: torch.device = CPU) -> None:
        """`capacity` counts segments; `seed` is that of the sampling; segments are held on `device`."""
        self.capacity, self.device = capacity, device
        self._fields = {name: self._empty(*getattr(layout, name)) for name in ARRAY_FIELDS}
        self._behaviour = {name: self._empty(*shape) for name, shape in layout.behaviour.items()}
        self._state = {name: self._empty(*shape) for name, shape in layout.state.items()}
        self._version = self._empty((), "int64")
        self._steps = np.zeros(capacity, np.int64)  # unmasked steps by slot
        self._generator = torch.Generator().manual_seed(seed)
        self._inserted = 0
        self._num_steps = 0

    def __len__(self) -> int:
        """Segments held."""
        return min(self._inserted, self.capacity)

    @property
    def num_steps(self) -> int:
        """Environment steps held, dummy steps not counted."""
        return self._num_steps

    @property
    def num_inserted(self) -> int:
        """Segments ever inserted."""
        return self._inserted

    @property
    def num_bytes(self) -> int:
        """Bytes of the arrays when full."""
        return sum(
            t.nbytes for t in (*self._fields.values(), *self._behaviour.values(), *self._state.values(), self._version)
        )

    def insert(self, unroll: Unroll, weights_version: int) -> Tensor:
        """Stores each column as a segment over the oldest ones; returns their slots, `[N]` int64."""
        num = unroll.num_columns
        for name, stored in self._fields.items():
            self._put(stored, torch.from_numpy(getattr(unroll, name)).transpose(0, 1))
        for name, stored in self._behaviour.items():
            self._put(stored, torch.from_numpy(unroll.behaviour[name]).transpose(0, 1))
        for name, stored in self._state.items():
            self._put(stored, torch.from_numpy(unroll.state[name]))
        self._put(self._version, torch.full((num,), weights_version))
        slots = (self._inserted + torch.arange(num)) % self.capacity
        steps, index = np.count_nonzero(unroll.mask, axis=0), slots.numpy()
        self._num_steps += int(steps.sum() - self._steps[index].sum())
        self._steps[index] = steps
        self._inserted += num
        return slots

    def draw(self, num: int) -> Tensor:
        """`num` slots drawn uniformly, `[num]` int64; raises ValueError where replay is empty."""
        if not len(self):
            raise ValueError("require a segment in replay before sampling, got none")
        return torch.randint(len(self), (num,), generator=self._generator)

    def gather(self, slots: Tensor, num_fresh: int = 0) -> Batch:
        """The segments in `slots` `[B]`, time-major; the first `num_fresh` are marked as trained on for the first time."""
        places = slots.to(self.device)
        fields = {name: stored.index_select(0, places).transpose(0, 1) for name, stored in self._fields.items()}
        behaviour = {name: stored.index_select(0, places).transpose(0, 1) for name, stored in self._behaviour.items()}
        state = {name: stored.index_select(0, places) for name, stored in self._state.items()}
        fresh = torch.arange(len(slots), device=self.device) < num_fresh
        return Batch(**fields, behaviour=behaviour, state=state, weights_version=self._version[places], fresh=fresh)

    def count_steps(self, slots: Tensor) -> Array:
        """Environment steps in each of `slots` `[B]`, dummy steps not counted."""
        steps: Array = self._steps[slots.numpy()]
        return steps

    # ── checkpoints ──

    def arrays(self) -> dict[str, Array]:
        """What is held, by name, `[len(self), …]`; views where it is held by the CPU."""
        arrays = {name: stored.cpu().numpy() for name, stored in self._held().items()}
        return arrays | {"steps": self._steps[: len(self)]}

    def restore(self, inserted: int, fill: Callable[[str, Array], None]) -> None:
        """Holds what `fill` puts into each of `arrays`, as after `inserted` segments."""
        self._inserted = inserted
        for name, stored in self._held().items():
            array = stored.cpu().numpy()
            fill(name, array)
            stored.copy_(torch.from_numpy(array))
        fill("steps", self._steps[: len(self)])
        self._num_steps = int(self._steps.sum())

    def _held(self) -> dict[str, Tensor]:
        parts = {"behaviour": self._behaviour, "state": self._state}
        named = {f"{part}.{name}": stored for part, fields in parts.items() for name, stored in fields.items()}
        return {
            name: stored[: len(self)] for name, stored in (self._fields | named | {"version": self._version}).items()
        }

    def sampling_state(self) -> str:
        """The sampling's generator, as hexadecimal digits."""
        return self._generator.get_state().numpy().tobytes().hex()

    def restore_sampling(self, state: str) -> None:
        """Goes on sampling from a `sampling_state`."""
        self._generator.set_state(torch.frombuffer(bytearray.fromhex(state), dtype=torch.uint8))

    def _empty(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        # zeros come from the kernel page by page as they are first written, so an unfilled replay takes no memory
        return torch.from_numpy(np.zeros((self.capacity, *shape), dtype)).to(self.device)

    def _put(self, stored: Tensor, values: Tensor) -> None:
        """Writes `values` `[N, …]` over the oldest segments; where the ring ends, in two pieces."""
        start = self._inserted % self.capacity
        first = min(len(values), self.capacity - start)
        stored[start : start + first].copy_(values[:first])
        stored[: len(values) - first].copy_(values[first:])
