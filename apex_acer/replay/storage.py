"""The storage of replay: a ring with the newest sequences."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apex_acer.networks.device import CPU
from apex_acer.protocol.specification import Array
from apex_acer.protocol.unroll import Batch, Kind, Layout, Unroll, take_rows

CHUNK = 1024  # sequences that are copied at once
VERSION: dict[str, Kind] = {"version": ((), "int64")}  # of the weights that acted; stored with each sequence

Read = Callable[[str, tuple[int, ...], str], Any]
"""A function that returns the saved array of a name, shape and type, whose rows can be taken by their numbers."""


class Storage:
    """A ring of sequences, each one environment's part of an unroll, in tensors on `device`.

    A sample has a number, `slot * starts + first`. It is a whole sequence (`starts` is 1), or a `window` of steps from any
    step on (`starts` is k); a window that reaches beyond its sequence is masked there. Observations are stored as single
    frames, not as stacks: a sequence of 20 Atari steps with a stack of 4 has 24 frames.
    """

    def __init__(
        self,
        layout: Layout,
        capacity: int,
        window: int = 0,
        device: torch.device = CPU,
        *,
        apart: Collection[str] = (),
    ) -> None:
        """`capacity` counts sequences of this `layout`, `window` counts steps; 0: samples are whole sequences.

        A subclass reads and writes the fields that are `apart` by itself.
        """
        self.layout, self.capacity, self._window, self._device = layout, capacity, window, device
        self._length = layout.action[0][0]  # k
        self.starts = self._length if window else 1
        """Samples of each sequence."""
        self._steps = np.zeros((capacity, self.starts), np.int32)  # unmasked steps that each sample trains on
        self.num_inserted = 0
        """Sequences inserted so far."""
        self.num_steps = 0
        """Environment steps held, masked ones not counted."""
        # the kernel provides pages of zeros when they are first written, so an empty ring takes no memory
        shapes = {name: field for name, field in (layout.fields | VERSION).items() if name not in apart}
        arrays = {name: np.zeros((capacity, *shape), dtype) for name, (shape, dtype) in shapes.items()}
        self._tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}

    def __len__(self) -> int:
        """Sequences held."""
        return min(self.num_inserted, self.capacity)

    @property
    def num_samples(self) -> int:
        return len(self) * self.starts

    @property
    def num_bytes(self) -> int:
        """Bytes of the sequences when the ring is full."""
        return sum(tensor.nbytes for tensor in self._tensors.values())

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
        for name in self.layout.fields:
            self._write(name, torch.from_numpy(sequences(unroll, name)))
        self._write("version", torch.full((unroll.num_columns,), weights_version))
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
        unchanged: Array = age >= self.num_inserted - since
        return unchanged

    def gather(self, samples: Tensor, num_fresh: int = 0, importance: Tensor | None = None) -> Batch:
        """The `samples` `[B]`, time-major; the first `num_fresh` are marked as `fresh`."""
        slots, firsts = (samples // self.starts).to(self._device), (samples % self.starts).to(self._device)
        length = self._window or self._length

        @functools.cache  # all fields but observations have the same number of rows
        def rows(per_sequence: int) -> Tensor:
            steps = torch.arange(per_sequence - self._length + length, device=self._device).unsqueeze(-1)
            return slots * per_sequence + (firsts + steps).clamp(max=per_sequence - 1)  # [rows, B]

        fields = nested(
            {
                name: self._tensors[name].index_select(0, slots)
                if name.startswith("state.")
                else self._read(name, rows(shape[0]))
                for name, (shape, _) in self.layout.fields.items()
            }
        )
        if self._window:
            inside = firsts + torch.arange(self._window, device=self._device).unsqueeze(-1) < self._length
            fields["mask"] = fields["mask"] & inside
        return Batch(
            **fields,
            weights_version=self._tensors["version"][slots],
            fresh=torch.arange(len(samples), device=self._device) < num_fresh,
            importance=(torch.ones(len(samples)) if importance is None else importance).to(self._device),
        )

    def arrays(self) -> dict[str, Array]:
        """The contents by name, `[len(self), …]`; views if they are on the CPU."""
        contents = {name: tensor[: len(self)].cpu().numpy() for name, tensor in self._tensors.items()}
        return contents | {"steps": self._steps[: len(self)]}

    def restore(self, inserted: int, read: Read) -> None:
        """Takes each of `arrays` as it was after `inserted` sequences."""
        self.num_inserted = inserted
        fields = self.layout.fields | VERSION
        for name, tensor in self._tensors.items():
            shape, dtype = fields[name]
            rows = read(name, (len(self), *shape), dtype)
            for chunk in np.split(np.arange(len(self)), range(CHUNK, len(self), CHUNK)):
                tensor[torch.from_numpy(chunk)] = torch.from_numpy(rows[chunk]).to(self._device)
        steps = self._steps[: len(self)]
        steps[...] = read("steps", steps.shape, "int32")
        self.num_steps = int(steps.sum())

    def _read(self, name: str, rows: Tensor) -> Tensor:
        """The field's `rows` `[rows, B]`, counted through all sequences; each column is of one sequence."""
        return take_rows(self._tensors[name], rows)

    def _write(self, name: str, values: Tensor) -> None:
        """Writes `values` `[N, …]` over the oldest sequences, in two pieces if the ring ends in between."""
        tensor, start = self._tensors[name], self.num_inserted % self.capacity
        first = min(len(values), self.capacity - start)
        tensor[start : start + first].copy_(values[:first])
        tensor[: len(values) - first].copy_(values[first:])


def sequences(unroll: Unroll, name: str) -> Array:
    """The array of `unroll` that `Layout.fields` calls `name`, with sequences first: `[N, …]`."""
    part, _, key = name.partition(".")
    array: Array = getattr(unroll, part)[key] if key else getattr(unroll, name)
    return array if part == "state" else array.swapaxes(0, 1)


def nested(named: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an `Unroll` or a `Batch`, from values that are named as in `Layout.fields`."""
    fields: dict[str, Any] = {"extras": {}, "state": {}}
    for name, value in named.items():
        part, _, key = name.partition(".")
        if key:
            fields[part][key] = value
        else:
            fields[name] = value
    return fields
