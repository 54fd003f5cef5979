"""What the next update learns from: fresh segments once each, in order, and replayed ones as the replay ratio says."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch
from torch import Tensor

from apex_acer.config import ConfigError, RunConfig
from apex_acer.device import CPU
from apex_acer.pace import Pace
from apex_acer.replay import UniformReplay
from apex_acer.seeds import derive_seed
from apex_acer.trajectory import Array, Batch, Layout, Unroll
from apex_acer.transfer import Transfer


class Chosen(NamedTuple):
    """Slots of a batch `[B]`, of which the first `num_fresh` are trained on for the first time."""

    slots: Tensor
    num_fresh: int


class Feed:
    """Replay, its pace, and the segments that were accepted and not yet trained on."""

    def __init__(
        self, config: RunConfig, layout: Layout, replay_device: torch.device, transfer: Transfer | None
    ) -> None:
        """With a `transfer` the next batch is chosen early, and is on its way while the one before is learned from."""
        settings, k = config.algorithm, config.algorithm.unroll_length
        self._joint = settings.mix == "joint"
        self._start, self._batch_size = config.replay.start, config.learner.batch_size
        # of a joint batch the share that keeps the ratio
        self._fresh_in_batch = math.ceil(self._batch_size / (1 + settings.replay_ratio if self._joint else 1))
        self._batch_steps = self._batch_size * k
        seed = derive_seed(config.seed, "learner", 1)
        self._replay = UniformReplay(layout, config.replay.capacity // k, seed, replay_device)
        # joint batches hold their replay in themselves, so nothing is drawn for them
        draw = "fixed" if self._joint else settings.replay_draw
        self._pace = Pace(settings.replay_ratio, derive_seed(config.seed, "learner", 2), draw)
        self._fresh: deque[int] = deque()  # slots
        self._transfer = transfer
        self._coming: tuple[Chosen, Future[Batch]] | None = None  # what was chosen early

    @property
    def num_bytes(self) -> int:
        """Of replay when full."""
        return self._replay.num_bytes

    @property
    def num_steps(self) -> int:
        """Environment steps held in replay, dummy steps not counted."""
        return self._replay.num_steps

    @property
    def num_fresh(self) -> int:
        """Segments accepted and not yet trained on."""
        return len(self._not_trained_on())

    @property
    def ratio(self) -> float:
        """Replayed ÷ fresh steps since replay held `replay.start`."""
        return self._pace.ratio

    @property
    def ready(self) -> bool:
        """Whether there is a batch to learn from now."""
        return self._coming is not None or self._has_batch

    @property
    def _has_batch(self) -> bool:
        return self._pace.owes(self._batch_steps) or len(self._fresh) >= self._fresh_in_batch

    def insert(self, unroll: Unroll, weights_version: int) -> None:
        """Puts an unroll's segments into replay; each waits to be trained on."""
        if self._coming:
            self._coming[1].exception()  # until it is gathered: the oldest segments are about to be overwritten
        self._fresh.extend(self._replay.insert(unroll, weights_version).tolist())

    def next_batch(self) -> tuple[Batch, int]:
        """The batch that is `ready` and how many of its segments, the first ones, are fresh; replay that is owed first."""
        if not self._transfer:
            slots, num_fresh = self._choose()
            return self._replay.gather(slots, num_fresh), num_fresh
        chosen, batch = self._coming or self._set_off(self._transfer)
        self._coming = None
        moved = batch.result()
        if self._has_batch:
            self._coming = self._set_off(self._transfer)
        return moved, chosen.num_fresh

    def blank(self) -> Batch:
        """A batch of zeros where nothing was inserted yet."""
        return self._replay.gather(torch.zeros(self._batch_size, dtype=torch.int64))

    def close(self) -> None:
        """Ends the transfer."""
        if self._transfer:
            self._transfer.close()

    def _set_off(self, transfer: Transfer) -> tuple[Chosen, Future[Batch]]:
        chosen = self._choose()
        return chosen, transfer.start(lambda: self._replay.gather(*chosen))

    def _choose(self) -> Chosen:
        return self._next_replayed() if self._pace.owes(self._batch_steps) else self._next_fresh()

    def _next_replayed(self) -> Chosen:
        slots = self._replay.draw(self._batch_size)
        self._pace.count_replayed(int(self._replay.count_steps(slots).sum()))
        return Chosen(slots, 0)

    def _next_fresh(self) -> Chosen:
        """Segments not trained on yet; with `algorithm.mix` joint, replayed ones beside them."""
        slots = torch.tensor([self._fresh.popleft() for _ in range(self._fresh_in_batch)])
        if self._replay.num_steps < self._start:
            return Chosen(slots, self._fresh_in_batch)
        replayed = self._replay.draw(self._batch_size - self._fresh_in_batch)
        self._pace.count_fresh(self._replay.count_steps(slots))
        self._pace.count_replayed(int(self._replay.count_steps(replayed).sum()))
        return Chosen(torch.cat([slots, replayed]), self._fresh_in_batch)

    # ── checkpoints ──

    def state(self) -> dict[str, Any]:
        """Plain values that go on with a run, and `segments`, which count only together with `arrays`."""
        return {
            "pace": self._pace.state(),
            "sampling": self._replay.sampling_state(),
            "segments": {"inserted": self._replay.num_inserted, "fresh": self._not_trained_on()},
        }

    def _not_trained_on(self) -> list[int]:
        coming = self._coming[0].slots[: self._coming[0].num_fresh].tolist() if self._coming else []
        return [*coming, *self._fresh]

    def arrays(self) -> dict[str, Array]:
        """The segments held, by name; views, not copies."""
        return self._replay.arrays()

    def restore(self, state: Mapping[str, Any], fill: Callable[[str, Array], None] | None) -> None:
        """Goes on from a `state`, with the segments that `fill` puts into each of `arrays`.

        Where there is no `fill` replay begins empty: what was owed of it is dropped with it, so that there is no burst of
        updates, and none before `replay.start` is reached again.
        """
        self._pace.restore(state["pace"], keep_credit=fill is not None)
        self._replay.restore_sampling(state["sampling"])
        if fill:
            segments = state["segments"]
            self._replay.restore(int(segments["inserted"]), fill)
            self._fresh = deque(segments["fresh"])


def make_feed(config: RunConfig, shapes: Layout, device: torch.device) -> Feed:
    """The feed of a learner on `device`, where `replay.device` says its replay is to be."""
    replay_device = device if config.replay.device == "learner" else CPU
    transfer = Transfer(device) if replay_device != device else None
    try:
        return Feed(config, shapes, replay_device, transfer)
    except torch.OutOfMemoryError:
        steps = config.replay.capacity
        raise ConfigError(
            f"replay.device: {replay_device} has no room for {steps:,} steps; give cpu, or a smaller replay.capacity"
        ) from None
