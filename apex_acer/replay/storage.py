"""Where replay keeps its sequences: a ring, of which the newest ones are left."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apex_acer.networks.device import CPU
from apex_acer.protocol.specification import Array
from apex_acer.protocol.unroll import ARRAY_FIELDS, Batch, Layout, Unroll, take_rows


class Storage(ABC):
    """A ring of sequences, each one environment's part of an unroll.

    A sample has a number, `slot * starts + first`. It is a whole sequence (`starts` is 1), or a `window` of steps from any
    step on (`starts` is k); a window that reaches beyond its sequence is masked there. What the numbers in a sequence are
    kept in is a subclass's business.
    """

    def __init__(self, layout: Layout, capacity: int, window: int = 0) -> None:
        """`capacity` counts sequences of this `layout`, `window` counts steps; 0: samples are whole sequences."""
        self.layout, self.capacity, self._window = layout, capacity, window
        self._length = layout.action[0][0]  # k
        self.starts = self._length if window else 1
        """Samples of each sequence."""
        self._steps = np.zeros((capacity, self.starts), np.int32)  # unmasked steps that each sample trains on
        self.num_inserted = 0
        """Sequences ever inserted."""
        self.num_steps = 0
        """Environment steps held, masked ones not counted."""

    def __len__(self) -> int:
        """Sequences held."""
        return min(self.num_inserted, self.capacity)

    @property
    def num_samples(self) -> int:
        """Samples held."""
        return len(self) * self.starts

    @property
    def is_full(self) -> bool:
        """Whether the next sequence is written over another."""
        return len(self) == self.capacity

    @property
    def oldest(self) -> int:
        """The slot of the oldest sequence."""
        return self.num_inserted % self.capacity if self.is_full else 0

    def insert(self, unroll: Unroll, weights_version: int) -> Tensor:
        """Stores each environment's sequence in place of the oldest one; returns their slots, `[N]` int64."""
        self._write(unroll, weights_version)
        slots = (self.num_inserted + torch.arange(unroll.num_columns)) % self.capacity
        index, alive = slots.numpy(), unroll.mask.T.astype(np.int32)  # [N, k]
        steps = alive if self._window else alive.sum(1, keepdims=True)
        self.num_steps += int(steps.sum() - self._steps[index].sum())
        self._steps[index] = steps
        self.num_inserted += unroll.num_columns
        return slots

    def count_steps(self, samples: Tensor) -> Array:
        """The environment steps that each of `samples` `[B]` trains on, masked ones not counted."""
        steps: Array = self._steps.reshape(-1)[samples.numpy()]
        return steps

    def are_held(self, samples: Tensor, since: int) -> Array:
        """Whether `samples` `[B]` are still what they were when `since` sequences had been inserted, `[B]` bool."""
        age = (samples.numpy() // self.starts - since) % self.capacity  # insertions from then until the slot's turn
        held: Array = age >= self.num_inserted - since
        return held

    def arrays(self) -> dict[str, Array]:
        """The contents by name, `[len(self), …]`."""
        return self._arrays() | {"steps": self._steps[: len(self)]}

    def restore(self, inserted: int, fill: Callable[[str, Array], None]) -> None:
        """Takes the contents that `fill` writes into each of `arrays`, as they were after `inserted` sequences."""
        self.num_inserted = inserted
        self._restore(fill)
        fill("steps", self._steps[: len(self)])
        self.num_steps = int(self._steps.sum())

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Bytes of the sequences when the ring is full."""

    @abstractmethod
    def gather(self, samples: Tensor, num_fresh: int = 0, importance: Tensor | None = None) -> Batch:
        """The `samples` `[B]`, time-major; the first `num_fresh` are marked as `fresh`."""

    @abstractmethod
    def _write(self, unroll: Unroll, weights_version: int) -> None:
        """Writes the sequences of `unroll` from slot `num_inserted % capacity` on, round the end."""

    @abstractmethod
    def _arrays(self) -> dict[str, Array]:
        """The contents by name but `steps`."""

    @abstractmethod
    def _restore(self, fill: Callable[[str, Array], None]) -> None:
        """Takes what `fill` writes into each of `_arrays`; `len(self)` is what it was."""


class TensorStorage(Storage):
    """Sequences in tensors, which hold single planes, not stacks, on `device`.

    Memory is allocated as the ring fills: a sequence of 20 Atari steps with a stack of 4 holds 24 planes, 1.2 per step.
    """

    def __init__(self, layout: Layout, capacity: int, window: int = 0, device: torch.device = CPU) -> None:
        super().__init__(layout, capacity, window)
        self._device = device
        self._fields = {name: self._empty(*getattr(layout, name)) for name in ARRAY_FIELDS}
        self._extras = {name: self._empty(*shape) for name, shape in layout.extras.items()}
        self._state = {name: self._empty(*shape) for name, shape in layout.state.items()}
        self._version = self._empty((), "int64")

    @property
    def num_bytes(self) -> int:
        return sum(stored.nbytes for stored in self._stored().values())

    def gather(self, samples: Tensor, num_fresh: int = 0, importance: Tensor | None = None) -> Batch:
        slots, firsts = (samples // self.starts).to(self._device), (samples % self.starts).to(self._device)
        read = self._reader(slots, firsts)
        fields: dict[str, Any] = {name: read(stored) for name, stored in self._fields.items()}
        if self._window:
            inside = firsts + torch.arange(self._window, device=self._device).unsqueeze(-1) < self._length
            fields["mask"] = fields["mask"] & inside
        return Batch(
            **fields,
            extras={name: read(stored) for name, stored in self._extras.items()},
            state={name: stored.index_select(0, slots) for name, stored in self._state.items()},
            weights_version=self._version[slots],
            fresh=torch.arange(len(samples), device=self._device) < num_fresh,
            importance=(torch.ones(len(samples)) if importance is None else importance).to(self._device),
        )

    def _reader(self, slots: Tensor, firsts: Tensor) -> Callable[[Tensor], Tensor]:
        """A function that reads the samples at steps `firsts` `[B]` of `slots` `[B]` from a field `[capacity, L, …]`."""
        length = self._window or self._length

        @functools.cache  # all fields but observations have the same number of rows
        def rows(held: int) -> Tensor:
            steps = torch.arange(held - self._length + length, device=self._device).unsqueeze(-1)
            return slots * held + (firsts + steps).clamp(max=held - 1)  # [rows, B]

        return lambda field: take_rows(field, rows(field.shape[1]))

    def _write(self, unroll: Unroll, weights_version: int) -> None:
        for name, stored in self._fields.items():
            self._put(stored, torch.from_numpy(getattr(unroll, name)).transpose(0, 1))
        for name, stored in self._extras.items():
            self._put(stored, torch.from_numpy(unroll.extras[name]).transpose(0, 1))
        for name, stored in self._state.items():
            self._put(stored, torch.from_numpy(unroll.state[name]))
        self._put(self._version, torch.full((unroll.num_columns,), weights_version))

    def _put(self, stored: Tensor, values: Tensor) -> None:
        """Writes `values` `[N, …]` over the oldest sequences, in two pieces if the ring ends in between."""
        start = self.num_inserted % self.capacity
        first = min(len(values), self.capacity - start)
        stored[start : start + first].copy_(values[:first])
        stored[: len(values) - first].copy_(values[first:])

    def _arrays(self) -> dict[str, Array]:
        # views, if the tensors are on the CPU
        return {name: stored[: len(self)].cpu().numpy() for name, stored in self._stored().items()}

    def _restore(self, fill: Callable[[str, Array], None]) -> None:
        for name, stored in self._stored().items():
            array = stored[: len(self)].cpu().numpy()
            fill(name, array)
            stored[: len(self)].copy_(torch.from_numpy(array))

    def _stored(self) -> dict[str, Tensor]:
        parts = {"extras": self._extras, "state": self._state}
        named = {f"{part}.{name}": stored for part, fields in parts.items() for name, stored in fields.items()}
        return self._fields | named | {"version": self._version}

    def _empty(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        # the kernel provides pages of zeros when they are first written, so an empty ring takes no memory
        return torch.from_numpy(np.zeros((self.capacity, *shape), dtype)).to(self._device)
