"""The next batch: gathered when it is asked for, or beside the update on the one before."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, NamedTuple

import torch

from apex_acer.learner.feed import Chosen, Feed
from apex_acer.protocol.unroll import Batch
from apex_acer.replay.transfer import Transfer


class Coming(NamedTuple):
    """A batch that was chosen early and is on its way."""

    chosen: Chosen
    batch: Future[Batch]
    drawing: dict[str, Any]
    """The feed's `drawing` before it was chosen."""


class Prefetch:
    """Gives the batches of `feed`; with a `transfer` the next one is on its way while the one before is learned from."""

    def __init__(self, feed: Feed, transfer: Transfer | None = None) -> None:
        self.feed, self._transfer = feed, transfer
        self._coming: Coming | None = None

    @property
    def ready(self) -> bool:
        """Whether there is a batch to learn from now."""
        return self._coming is not None or self.feed.mixture.has_batch

    @property
    def num_fresh(self) -> int:
        """Segments that are still to be trained on for the first time."""
        return self.feed.num_fresh + (self._coming.chosen.num_fresh if self._coming else 0)

    def next_batch(self, progress: float = 0.0) -> tuple[Chosen, Batch]:
        """The batch that is `ready`, and what was chosen for it, `progress` (0 to 1, or more) through the schedules."""
        if not self._transfer:
            chosen = self.feed.choose(progress)
            return chosen, self.feed.gather(chosen)
        coming = self._coming or self._start(self._transfer, progress)
        self._coming = None
        batch = coming.batch.result()
        if self.feed.mixture.has_batch:
            self._coming = self._start(self._transfer, progress)
        return coming.chosen, batch

    def _start(self, transfer: Transfer, progress: float) -> Coming:
        drawing, chosen = self.feed.drawing(), self.feed.choose(progress)
        return Coming(chosen, transfer.start(lambda: self.feed.gather(chosen)), drawing)

    def wait(self) -> None:
        """Returns once the batch on its way is gathered: from then on its segments may be overwritten."""
        if self._coming:
            self._coming.batch.exception()

    def state(self) -> dict[str, Any]:
        """The feed's state as if the batch on its way, which was not learned from, had not been chosen yet."""
        state = self.feed.state()
        if not self._coming:
            return state
        chosen = self._coming.chosen
        state["segments"]["fresh"][:0] = chosen.items[: chosen.num_fresh].tolist()
        return state | self._coming.drawing

    def close(self) -> None:
        """Ends the transfer."""
        if self._transfer:
            self._transfer.close()


def make_prefetch(feed: Feed, device: torch.device) -> Prefetch:
    """That of a learner on `device`: batches are gathered early if they have to be moved there."""
    return Prefetch(feed, Transfer(device) if feed.replay.device != device else None)
