"""A storage whose observations are compressed with LZ4: Atari's take a twelfth to a seventieth of the memory."""

from __future__ import annotations

import math
from typing import Any

import lz4.block
import numpy as np
import torch
from torch import Tensor

from apex_acer.protocol.specification import Array
from apex_acer.protocol.unroll import Layout
from apex_acer.replay.storage import Read, Storage

OBS = "obs"
USUAL_RATIO = 10  # of the bytes of observations to those that are held, until some are


class CompressedArray:
    """An array `[n, *shape]` in main memory, each row of which is compressed."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, rows: list[bytes]) -> None:
        """`rows` are compressed rows; empty ones must be written before they are read."""
        self._shape, self._dtype, self._rows = shape, np.dtype(dtype), rows
        self.row_bytes = math.prod(shape) * self._dtype.itemsize
        """Bytes of a row that is not compressed."""
        self.num_bytes = sum(map(len, rows))
        """Bytes of all rows as they are held."""

    def row(self, index: int) -> Array:
        """The row at `index`: `[*shape]`, not writable."""
        data = lz4.block.decompress(self._rows[index], uncompressed_size=self.row_bytes)
        return np.frombuffer(data, self._dtype).reshape(self._shape)

    def __getitem__(self, indices: Array) -> Array:
        """The rows at `indices` `[B]`: `[B, *shape]`."""
        rows = np.empty((len(indices), *self._shape), self._dtype)
        for row, index in zip(rows, indices, strict=True):
            row[...] = self.row(index)
        return rows

    def __setitem__(self, index: int, row: Array) -> None:
        data = lz4.block.compress(np.ascontiguousarray(row), store_size=False)
        self.num_bytes += len(data) - len(self._rows[index])
        self._rows[index] = data

    def extend(self, num: int) -> None:
        """Adds empty rows, up to `num` in all."""
        self._rows += [b""] * (num - len(self._rows))

    def packed(self, num: int) -> dict[str, Array]:
        """The first `num` rows: `sizes` `[num]` int64, the bytes of each, and `lz4`, all bytes in their order."""
        rows = self._rows[:num]
        return {"sizes": np.array([len(row) for row in rows], np.int64), "lz4": np.frombuffer(b"".join(rows), np.uint8)}


def unpack(shape: tuple[int, ...], dtype: Any, sizes: Array, data: Array) -> CompressedArray:
    """The array whose `packed` rows are these; raises ValueError if a row is not of this `shape` and `dtype`."""
    rows = [data[end - size : end].tobytes() for size, end in zip(sizes, np.cumsum(sizes), strict=True)]
    array = CompressedArray(shape, dtype, rows)
    try:
        for index in range(len(rows)):
            array.row(index)
    except lz4.block.LZ4BlockError as error:
        raise ValueError(f"row {index}: {error}") from None
    return array


class CompressedStorage(Storage):
    """A storage in main memory; what is sampled is exactly what was inserted."""

    def __init__(self, layout: Layout, capacity: int, window: int = 0) -> None:
        super().__init__(layout, capacity, window, apart=(OBS,))
        self._obs = CompressedArray(*layout.fields[OBS], [b""] * capacity)

    @property
    def num_bytes(self) -> int:
        """Bytes of the sequences when the ring is full, if those to come are compressed as well as those held."""
        mean = self._obs.num_bytes / len(self) if len(self) else self._obs.row_bytes / USUAL_RATIO
        return super().num_bytes + int(self.capacity * mean)

    def arrays(self) -> dict[str, Array]:
        packed = {f"{OBS}.{name}": array for name, array in self._obs.packed(len(self)).items()}
        return super().arrays() | packed

    def restore(self, inserted: int, read: Read) -> None:
        super().restore(inserted, read)
        shape, dtype = self.layout.fields[OBS]
        saved = read(OBS, (len(self), *shape), dtype)
        if isinstance(saved, CompressedArray):
            self._obs = saved
            self._obs.extend(self.capacity)
        else:  # by a learner whose replay was on a GPU
            for index, row in enumerate(saved):
                self._obs[index] = row

    def _write(self, name: str, values: Tensor) -> None:
        if name != OBS:
            super()._write(name, values)
            return
        for number, row in enumerate(values.numpy()):
            self._obs[(self.num_inserted + number) % self.capacity] = row

    def _read(self, name: str, rows: Tensor) -> Tensor:
        if name != OBS:
            return super()._read(name, rows)
        shape, dtype = self.layout.fields[OBS]
        obs = np.empty((*rows.shape, *shape[1:]), dtype)
        for column, own in enumerate(rows.T.numpy()):  # all rows of a column are of one sequence
            obs[:, column] = self._obs.row(own[0] // shape[0])[own % shape[0]]
        return torch.from_numpy(obs)
