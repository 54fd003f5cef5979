"""The replay memory: a ring buffer of segments, sampled uniformly or by priority."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apex_acer.config import ReplayConfig
from apex_acer.networks.device import CPU
from apex_acer.protocol.specification import Array
from apex_acer.protocol.unroll import ARRAY_FIELDS, PRIORITY, Batch, Layout, Unroll, take_rows
from apex_acer.replay.sum_tree import SumTree

LEAST_PRIORITY = 1e-6  # added to each priority


class UniformReplay:
    """A ring buffer of segments (single planes, not stacks), sampled uniformly with replacement.

    An item is the number of a possible sample, `slot * starts + first`. A sample is a whole segment (`starts` is 1), or a
    `window` of steps from any step on (`starts` is k); a window that reaches beyond its segment is masked there.

    Memory is allocated as the buffer fills: a segment of 20 Atari steps with a stack of 4 holds 24 planes, 1.2 per step.
    """

    def __init__(self, layout: Layout, capacity: int, seed: int, device: torch.device = CPU, window: int = 0) -> None:
        """`capacity` counts segments, which are held on `device`; `window` counts steps; 0: samples are whole segments."""
        self.capacity, self.device, self._window = capacity, device, window
        self._length = layout.action[0][0]  # k
        self._starts = self._length if window else 1
        self._fields = {name: self._empty(*getattr(layout, name)) for name in ARRAY_FIELDS}
        self._behaviour = {name: self._empty(*shape) for name, shape in layout.behaviour.items()}
        self._state = {name: self._empty(*shape) for name, shape in layout.state.items()}
        self._version = self._empty((), "int64")
        self._steps = np.zeros((capacity, self._starts), np.int32)  # unmasked steps that each item trains on
        self._generator = torch.Generator().manual_seed(seed)
        self.num_inserted = 0
        """Segments ever inserted."""
        self.num_steps = 0
        """Environment steps held, dummy steps not counted."""

    def __len__(self) -> int:
        """Segments held."""
        return min(self.num_inserted, self.capacity)

    @property
    def is_full(self) -> bool:
        """Whether it can hold no more segments."""
        return len(self) == self.capacity

    @property
    def oldest(self) -> int:
        """The slot of the oldest segment."""
        return self.num_inserted % self.capacity if self.is_full else 0

    @property
    def num_bytes(self) -> int:
        """Bytes of the arrays when the buffer is full."""
        return sum(stored.nbytes for stored in self._stored().values())

    def insert(self, unroll: Unroll, weights_version: int) -> Tensor:
        """Stores each column as a segment in place of the oldest one; returns their slots, `[N]` int64."""
        num = unroll.num_columns
        for name, stored in self._fields.items():
            self._put(stored, torch.from_numpy(getattr(unroll, name)).transpose(0, 1))
        for name, stored in self._behaviour.items():
            self._put(stored, torch.from_numpy(unroll.behaviour[name]).transpose(0, 1))
        for name, stored in self._state.items():
            self._put(stored, torch.from_numpy(unroll.state[name]))
        self._put(self._version, torch.full((num,), weights_version))
        slots = (self.num_inserted + torch.arange(num)) % self.capacity
        index, alive = slots.numpy(), unroll.mask.T.astype(np.int32)  # [N, k]
        steps = alive if self._window else alive.sum(1, keepdims=True)
        self.num_steps += int(steps.sum() - self._steps[index].sum())
        self._steps[index] = steps
        self.num_inserted += num
        return slots

    def draw(self, num: int) -> Tensor:
        """Draws `num` items, `[num]` int64; raises ValueError if replay is empty."""
        self._require_some()
        return torch.randint(len(self) * self._starts, (num,), generator=self._generator)

    def least_probability(self, items: Tensor) -> float:
        """The lowest of the probabilities with which `items` `[B]` are drawn; infinite if there are none."""
        return 1 / (len(self) * self._starts) if len(items) else math.inf

    def importance(self, items: Tensor, progress: float, least: float | None = None) -> Tensor:
        """The importance weights `[B]` float32 of `items` in a loss, when the share `progress` of the run is over.

        The item of probability `least`, by default the lowest of `items`, has weight 1.
        """
        return torch.ones(len(items))

    def set_priorities(self, items: Tensor, priorities: Tensor, since: int) -> None:
        """Sets the priorities `[B]` of `items` `[B]`, which were drawn when `since` segments had been inserted."""

    def gather(self, items: Tensor, num_fresh: int = 0, importance: Tensor | None = None) -> Batch:
        """The samples of `items` `[B]`, time-major; the first `num_fresh` are marked as `fresh`."""
        slots, firsts = (items // self._starts).to(self.device), (items % self._starts).to(self.device)
        read = self._reader(slots, firsts)
        fields: dict[str, Any] = {name: read(stored) for name, stored in self._fields.items()}
        if self._window:
            inside = firsts + torch.arange(self._window, device=self.device).unsqueeze(-1) < self._length
            fields["mask"] = fields["mask"] & inside
        return Batch(
            **fields,
            behaviour={name: read(stored) for name, stored in self._behaviour.items()},
            state={name: stored.index_select(0, slots) for name, stored in self._state.items()},
            weights_version=self._version[slots],
            fresh=torch.arange(len(items), device=self.device) < num_fresh,
            importance=(torch.ones(len(items)) if importance is None else importance).to(self.device),
        )

    def count_steps(self, items: Tensor) -> Array:
        """The environment steps that each of `items` `[B]` trains on, dummy steps not counted."""
        steps: Array = self._steps.reshape(-1)[items.numpy()]
        return steps

    def _reader(self, slots: Tensor, firsts: Tensor) -> Callable[[Tensor], Tensor]:
        """A function that reads the samples at steps `firsts` `[B]` of `slots` `[B]` from a field `[capacity, L, …]`."""
        length = self._window or self._length

        @functools.cache  # all fields but observations have the same number of rows
        def rows(held: int) -> Tensor:
            steps = torch.arange(held - self._length + length, device=self.device).unsqueeze(-1)
            return slots * held + (firsts + steps).clamp(max=held - 1)  # [rows, B]

        return lambda field: take_rows(field, rows(field.shape[1]))

    def _require_some(self) -> None:
        if not len(self):
            raise ValueError("require a segment in replay before sampling, got none")

    def arrays(self) -> dict[str, Array]:
        """The contents by name, `[len(self), …]`; these are views if replay is on the CPU."""
        arrays = {name: stored[: len(self)].cpu().numpy() for name, stored in self._stored().items()}
        return arrays | {"steps": self._steps[: len(self)]}

    def restore(self, inserted: int, fill: Callable[[str, Array], None]) -> None:
        """Takes the contents that `fill` writes into each of `arrays`, as they were after `inserted` segments."""
        self.num_inserted = inserted
        for name, stored in self._stored().items():
            array = stored[: len(self)].cpu().numpy()
            fill(name, array)
            stored[: len(self)].copy_(torch.from_numpy(array))
        fill("steps", self._steps[: len(self)])
        self.num_steps = int(self._steps.sum())

    def _stored(self) -> dict[str, Tensor]:
        parts = {"behaviour": self._behaviour, "state": self._state}
        named = {f"{part}.{name}": stored for part, fields in parts.items() for name, stored in fields.items()}
        return self._fields | named | {"version": self._version}

    def sampling_state(self) -> str:
        """The state of the sampling's random generator, in hexadecimal digits."""
        return self._generator.get_state().numpy().tobytes().hex()

    def restore_sampling(self, state: str) -> None:
        """Restores a `sampling_state`."""
        self._generator.set_state(torch.frombuffer(bytearray.fromhex(state), dtype=torch.uint8))

    def _empty(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        # the kernel provides pages of zeros when they are first written, so an empty replay takes no memory
        return torch.from_numpy(np.zeros((self.capacity, *shape), dtype)).to(self.device)

    def _put(self, stored: Tensor, values: Tensor) -> None:
        """Writes `values` `[N, …]` over the oldest segments, in two pieces if the ring ends in between."""
        start = self.num_inserted % self.capacity
        first = min(len(values), self.capacity - start)
        stored[start : start + first].copy_(values[:first])
        stored[: len(values) - first].copy_(values[first:])


class PrioritizedReplay(UniformReplay):
    """Draws items in proportion to priority ^ alpha (Schaul et al. 2016, arXiv 1511.05952, proportional variant).

    A new item has the priority that its actor gave it (a whole segment the highest of its steps), or else the highest in
    the buffer; dummy steps are never drawn. The oldest segment is overwritten first, whatever its priority, as in Ape-X
    (arXiv 1803.00933).
    """

    def __init__(
        self,
        layout: Layout,
        capacity: int,
        seed: int,
        device: torch.device = CPU,
        window: int = 0,
        *,
        settings: ReplayConfig,
    ) -> None:
        super().__init__(layout, capacity, seed, device, window)
        self._settings = settings
        self._tree = SumTree(capacity * self._starts)

    def insert(self, unroll: Unroll, weights_version: int) -> Tensor:
        """Like `UniformReplay.insert`; also sets the first priorities."""
        given = unroll.behaviour.get(PRIORITY)
        highest = 0.0 if given is not None else self._weights().max(initial=0.0) or 1.0
        slots = super().insert(unroll, weights_version)
        index = slots.numpy()
        items = index[:, None] * self._starts + np.arange(self._starts)  # [N, starts]
        weights = np.full(items.shape, highest) if given is None else self._raised(self._of_items(given.T))
        self._tree.put(items.ravel(), np.where(self._steps[index] > 0, weights, 0.0).ravel())
        return slots

    def draw(self, num: int) -> Tensor:
        """Draws `num` items, one from each of `num` equal shares of the total weight (stratified sampling)."""
        self._require_some()
        within = torch.rand(num, generator=self._generator, dtype=torch.float64)
        return torch.from_numpy(self._tree.draw(((torch.arange(num) + within) / num).numpy()))

    def least_probability(self, items: Tensor) -> float:
        """Like `UniformReplay.least_probability`."""
        return float((self._tree[items.numpy()] / self._tree.total).min(initial=math.inf))

    def importance(self, items: Tensor, progress: float, least: float | None = None) -> Tensor:
        """(N P(i)) ^ −beta, divided by the largest weight in the batch."""
        given = self._settings
        final = given.importance_exponent_final
        exponent = given.importance_exponent + (final - given.importance_exponent) * min(progress, 1.0)
        probabilities = self._tree[items.numpy()] / self._tree.total
        rarest = probabilities.min() if least is None else least
        return torch.from_numpy((rarest / probabilities) ** exponent).float()

    def set_priorities(self, items: Tensor, priorities: Tensor, since: int) -> None:
        """Like `UniformReplay.set_priorities`, except for items whose segment was overwritten after they were drawn."""
        places, raised = items.numpy(), self._raised(priorities.cpu().numpy())
        age = (
            places // self._starts - since
        ) % self.capacity  # segments inserted after the draw until this slot's turn
        current = (age >= self.num_inserted - since) & (self._tree[places] > 0)
        self._tree.put(places[current], raised[current])

    def arrays(self) -> dict[str, Array]:
        """The contents by name, with the weight of each item."""
        return super().arrays() | {"weights": self._weights()}

    def restore(self, inserted: int, fill: Callable[[str, Array], None]) -> None:
        """Like `UniformReplay.restore`; also restores the weights."""
        super().restore(inserted, fill)
        weights = self._weights()
        fill("weights", weights)
        self._tree.put(np.arange(len(weights)), weights)

    def _of_items(self, priorities: Array) -> Array:
        """The priorities `[N, k]` of steps as those of items, `[N, starts]`."""
        return priorities if self._window else priorities.max(1, keepdims=True)

    def _weights(self) -> Array:
        return self._tree[np.arange(len(self) * self._starts)]

    def _raised(self, priorities: Array) -> Array:
        """The weights of `priorities`, above zero so that every item is drawn now and then."""
        raised: Array = (priorities.astype(np.float64) + LEAST_PRIORITY) ** self._settings.priority_exponent
        return raised
