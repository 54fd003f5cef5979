"""Provides the next batch: gathered when it is asked for, or, for a GPU, during the update before."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, NamedTuple

import torch

from apex_acer.learner.feed import Feed, Selection
from apex_acer.protocol.unroll import Batch
from apex_acer.replay.transfer import Transfer


class PendingBatch(NamedTuple):
    """A batch that is being gathered and moved."""

    selection: Selection
    batch: Future[Batch]
    drawing: dict[str, Any]
    """The feed's `drawing` before the selection."""


class Prefetch:
    """Gives the batches of `feed`; with a `transfer` the next one is gathered and moved during the update before."""

    def __init__(self, feed: Feed, transfer: Transfer | None = None) -> None:
        self.feed, self._transfer = feed, transfer
        self._pending: PendingBatch | None = None

    @property
    def ready(self) -> bool:
        """Whether there is a batch to learn from now."""
        return self._pending is not None or self.feed.mixture.has_batch

    @property
    def num_fresh(self) -> int:
        """Segments that were not trained on yet."""
        return self.feed.num_fresh + (self._pending.selection.num_fresh if self._pending else 0)

    def next_batch(self, progress: float = 0.0) -> tuple[Selection, Batch]:
        """The batch that is `ready`, and its items; `progress` is the share of the schedules that is over."""
        if not self._transfer:
            selection = self.feed.select(progress)
            return selection, self.feed.gather(selection)
        pending = self._pending or self._start(self._transfer, progress)
        self._pending = None
        batch = pending.batch.result()
        if self.feed.mixture.has_batch:
            self._pending = self._start(self._transfer, progress)
        return pending.selection, batch

    def _start(self, transfer: Transfer, progress: float) -> PendingBatch:
        drawing, selection = self.feed.drawing(), self.feed.select(progress)
        return PendingBatch(selection, transfer.start(lambda: self.feed.gather(selection)), drawing)

    def wait(self) -> None:
        """Returns when the pending batch is gathered, so that its segments may be overwritten."""
        if self._pending:
            self._pending.batch.exception()

    def state(self) -> dict[str, Any]:
        """The feed's state as if the pending batch, which was not learned from, had not been selected."""
        state = self.feed.state()
        if not self._pending:
            return state
        selection = self._pending.selection
        state["segments"]["fresh"][:0] = selection.items[: selection.num_fresh].tolist()
        return state | self._pending.drawing

    def close(self) -> None:
        """Ends the transfer's thread."""
        if self._transfer:
            self._transfer.close()


def make_prefetch(feed: Feed, device: torch.device) -> Prefetch:
    """The prefetch of a learner on `device`; it has a transfer if replay is held elsewhere."""
    return Prefetch(feed, Transfer(device) if feed.replay.device != device else None)
