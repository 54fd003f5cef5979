"""Moves batches from replay to the learner's device."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from apex_acer.protocol.unroll import Batch


class Transfer:
    """Gathers a batch and moves it to `device` in its own thread, during the update on the previous batch."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._thread = ThreadPoolExecutor(1, "transfer")
        on_gpu = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]

    def start(self, gather: Callable[[], Batch]) -> Future[Batch]:
        """Starts to gather a batch and to move it; the tensors of the future's result are on the device."""
        return self._thread.submit(lambda: self._move(gather()))

    def close(self) -> None:
        """Ends the thread."""
        self._thread.shutdown()

    def _move(self, batch: Batch) -> Batch:
        if self._stream is None:
            return each_tensor(batch, lambda tensor: tensor.to(self._device))
        with torch.cuda.stream(self._stream):
            # page-locked memory is copied while the device computes
            moved = each_tensor(batch, lambda tensor: tensor.pin_memory().to(self._device, non_blocking=True))
        self._stream.synchronize()
        computing = torch.cuda.default_stream(self._device)
        return each_tensor(moved, lambda tensor: _used_on(tensor, computing))


def each_tensor(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    """`batch` with `change` applied to every tensor."""
    changed: dict[str, Any] = {
        name: {key: change(tensor) for key, tensor in field.items()} if isinstance(field, dict) else change(field)
        for name, field in vars(batch).items()
    }
    return Batch(**changed)


def _used_on(tensor: Tensor, stream: torch.cuda.Stream) -> Tensor:
    tensor.record_stream(stream)  # its memory must not be given to the next copy while the device computes with it
    return tensor
