"""What the next update learns from: fresh segments once each, in order, and replayed ones as the replay ratio says."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from apex_acer.algorithms.algorithm import Feeding
from apex_acer.config import ConfigError, RunConfig
from apex_acer.config.seeds import derive_seed
from apex_acer.learner.ranks import ALONE, Ranks
from apex_acer.networks.device import CPU
from apex_acer.protocol.trajectory import Array, Batch, Layout, Unroll
from apex_acer.replay.buffer import PrioritizedReplay, UniformReplay
from apex_acer.replay.pace import Pace
from apex_acer.replay.transfer import Transfer


class Chosen(NamedTuple):
    """Items of a batch `[B]`, of which the first `num_fresh` are trained on for the first time, and their weights `[B]`."""

    items: Tensor
    num_fresh: int
    importance: Tensor
    num_inserted: int
    """Segments inserted when they were chosen."""
    num_blank: int
    """Items at the end that are there only to fill the batch, and are masked out."""


class Offer(NamedTuple):
    """What every learner must know of a feed."""

    waiting: int
    """Fresh segments."""
    held: int
    """Environment steps in replay, dummy steps not counted."""
    uncounted: int
    """Fresh steps since the last offer that are not to be trained on as such."""
    is_full: bool
    """Whether replay can hold no more segments."""


class Feed:
    """Replay, its pace, and the segments that were accepted and not yet trained on.

    Of several learners each has a feed of its own segments and gives an equal part of every batch; who lacks some fills its
    part up with blanks. All of them know what the others hold as of the last `accept`, and keep one pace.
    """

    def __init__(
        self,
        config: RunConfig,
        feeding: Feeding,
        replay: UniformReplay,
        transfer: Transfer | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """With a `transfer` the next batch is chosen early, and is on its way while the one before is learned from."""
        settings, self._replay, self._trains_fresh = config.algorithm, replay, feeding.fresh
        self._start, self._batch_size = config.replay.start, config.learner.batch_size // ranks.count
        self._batch_steps = config.learner.batch_size * (1 if feeding.window else settings.unroll_length)
        self._pace = Pace(settings.replay_ratio, derive_seed(config.seed, "learner", 2), feeding.draw)
        self._ranks = ranks
        self._waiting = np.zeros(ranks.count, np.int64)  # fresh segments by learner
        self._held = 0  # environment steps in everybody's replay
        self._replays = False  # whether there is enough of it to begin
        self._uncounted = 0  # fresh steps that are not to be trained on as such, since the last offer
        self._fresh: deque[int] = deque()  # slots
        self._transfer = transfer
        self._coming: tuple[Chosen, Future[Batch]] | None = None  # what was chosen early, and ...
        self._before_coming: dict[str, Any] = {}  # ... the `_drawing` that it was chosen by
        self._given: Chosen | None = None  # the batch given last

    @property
    def num_bytes(self) -> int:
        """Of replay when full."""
        return self._replay.num_bytes

    @property
    def num_steps(self) -> int:
        """Environment steps held in everybody's replay, dummy steps not counted."""
        return self._held

    @property
    def num_fresh(self) -> int:
        """Segments accepted and not yet trained on."""
        return len(self._not_trained_on())

    @property
    def ratio(self) -> float:
        """Replayed ÷ fresh steps since replay began."""
        return self._pace.ratio

    @property
    def ready(self) -> bool:
        """Whether there is a batch to learn from now."""
        return self._coming is not None or self._has_batch

    @property
    def _has_batch(self) -> bool:
        """Where some learners are short of fresh segments, the others make a batch once they hold all of it."""
        equal, whole = self._batch_size, self._batch_size * self._ranks.count
        return self._pace.owes(self._batch_steps) or self._waiting.min() >= equal or self._waiting.sum() >= whole

    @property
    def lacks(self) -> bool:
        """Whether this learner could not make a whole fresh batch by itself."""
        return len(self._fresh) < self._batch_size * self._ranks.count

    def offer(self) -> Offer:
        """What the others must know of this feed, which they `accept`."""
        is_full = len(self._replay) == self._replay.capacity
        return Offer(len(self._fresh), self._replay.num_steps, self._uncounted, is_full)

    def accept(self, offers: Array) -> None:
        """Takes every learner's newest offer, the rows of `[ranks, 4]`.

        Replay begins once it holds `replay.start` steps, or is full: it may never hold so many, because it is filled by
        whole segments, whose dummy steps do not count.
        """
        waiting, held, uncounted, is_full = offers.T
        self._waiting, self._held = waiting.astype(np.int64), int(held.sum())
        self._replays = self._held >= self._start or bool(is_full.all())
        self._uncounted = 0
        if uncounted.any() and self._replays:
            self._pace.count_fresh(uncounted)

    def insert(self, unroll: Unroll, weights_version: int) -> None:
        """Puts an unroll's segments into replay; each waits to be trained on, or at once counts as fresh if none are."""
        if self._coming:
            self._coming[1].exception()  # until it is gathered: the oldest segments are about to be overwritten
        slots = self._replay.insert(unroll, weights_version)
        if self._trains_fresh:
            self._fresh.extend(slots.tolist())
        else:
            self._uncounted += unroll.num_steps
        if self._ranks is ALONE:
            self.accept(np.array([self.offer()]))

    def next_batch(self, progress: float = 0.0) -> Batch:
        """The batch that is `ready`, fresh segments first in it; replay that is owed comes before what is fresh.

        `progress` is the share of the schedules that is over; it may exceed 1.
        """
        if not self._transfer:
            chosen = self._given = self._choose(progress)
            return self._gather(chosen)
        chosen, batch = self._coming or self._set_off(self._transfer, progress)
        self._coming, self._given = None, chosen
        moved = batch.result()
        if self._has_batch:
            self._coming = self._set_off(self._transfer, progress)
        return moved

    def set_priorities(self, priorities: Tensor) -> None:
        """Those `[B]` of the batch given last, as it was learned from."""
        assert self._given is not None
        given = len(self._given.items) - self._given.num_blank
        self._replay.set_priorities(self._given.items[:given], priorities[:given], self._given.num_inserted)

    def blank(self) -> Batch:
        """A batch of zeros where nothing was inserted yet."""
        return self._replay.gather(torch.zeros(self._batch_size, dtype=torch.int64))

    def close(self) -> None:
        """Ends the transfer."""
        if self._transfer:
            self._transfer.close()

    def _set_off(self, transfer: Transfer, progress: float) -> tuple[Chosen, Future[Batch]]:
        self._before_coming = self._drawing()
        chosen = self._choose(progress)
        return chosen, transfer.start(lambda: self._gather(chosen))

    def _gather(self, chosen: Chosen) -> Batch:
        batch = self._replay.gather(chosen.items, chosen.num_fresh, chosen.importance)
        if chosen.num_blank:
            batch.mask[:, -chosen.num_blank :] = False
        return batch

    def _choose(self, progress: float) -> Chosen:
        if self._pace.owes(self._batch_steps):
            return self._chosen([], self._batch_size, progress)
        given = self._waiting.clip(max=self._batch_size)
        self._waiting = self._waiting - given
        slots = [self._fresh.popleft() for _ in range(given[self._ranks.rank])]
        if self._replays:
            steps = np.zeros(self._batch_size)
            steps[: len(slots)] = self._replay.count_steps(torch.tensor(slots, dtype=torch.int64))
            self._pace.count_fresh(self._ranks.gather(steps).ravel())
        return self._chosen(slots, 0, progress)

    def _chosen(self, slots: list[int], num_replayed: int, progress: float) -> Chosen:
        """The fresh segments in `slots`, or `num_replayed` drawn from replay, and blanks up to a whole batch."""
        items, importance = torch.tensor(slots, dtype=torch.int64), torch.ones(len(slots))
        if num_replayed:
            drawn = self._replay.draw(num_replayed) if len(self._replay) else items.new_empty(0)
            mine = float(self._replay.count_steps(drawn).sum()), self._replay.least_probability(drawn)
            steps, least = self._ranks.gather(mine).T
            self._pace.count_replayed(int(steps.sum()))
            items = torch.cat([items, drawn])
            importance = torch.cat([importance, self._replay.importance(drawn, progress, least.min())])
        num_blank = self._batch_size - len(items)
        items, importance = (
            torch.cat([items, items.new_zeros(num_blank)]),
            torch.cat([importance, torch.ones(num_blank)]),
        )
        return Chosen(items, len(slots), importance, self._replay.num_inserted, num_blank)

    # ── checkpoints ──

    def state(self) -> dict[str, Any]:
        """Plain values that go on with a run, and `segments`, which count only together with `arrays`.

        A batch that is on its way was not learned from: it is chosen again.
        """
        segments = {"inserted": self._replay.num_inserted, "fresh": self._not_trained_on()}
        return {**(self._before_coming if self._coming else self._drawing()), "segments": segments}

    def _drawing(self) -> dict[str, Any]:
        """What moves on with every batch that is chosen."""
        return {"pace": self._pace.state(), "sampling": self._replay.sampling_state()}

    def _not_trained_on(self) -> list[int]:
        coming = self._coming[0].items[: self._coming[0].num_fresh].tolist() if self._coming else []
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
        if self._ranks.rank == 0:  # the others go on drawing in their own ways
            self._replay.restore_sampling(state["sampling"])
        if fill:
            segments = state["segments"]
            self._replay.restore(int(segments["inserted"]), fill)
            self._fresh = deque(segments["fresh"])
            self.accept(np.array([self.offer()]))


def make_feed(config: RunConfig, feeding: Feeding, shapes: Layout, device: torch.device, ranks: Ranks = ALONE) -> Feed:
    """The feed of a learner on `device`, where `replay.device` says its replay is to be; of several each has a part."""
    replay_device = device if config.replay.device == "learner" else CPU
    transfer = Transfer(device) if replay_device != device else None
    try:
        replay = make_replay(config, feeding, shapes, config.replay.capacity // ranks.count, replay_device, ranks.rank)
    except torch.OutOfMemoryError:
        steps = config.replay.capacity
        raise ConfigError(
            f"replay.device: {replay_device} has no room for {steps:,} steps; give cpu, or a smaller replay.capacity"
        ) from None
    return Feed(config, feeding, replay, transfer, ranks)


def make_replay(
    config: RunConfig, feeding: Feeding, shapes: Layout, env_steps: int, device: torch.device = CPU, rank: int = 0
) -> UniformReplay:
    """The replay that `config.replay` asks for, of so many environment steps, on `device`; each `rank` draws otherwise."""
    capacity = env_steps // config.algorithm.unroll_length
    seed = derive_seed(config.seed, "learner", 1, *([rank] if rank else []))
    if config.replay.sampling == "uniform":
        return UniformReplay(shapes, capacity, seed, device, feeding.window)
    return PrioritizedReplay(shapes, capacity, seed, device, feeding.window, settings=config.replay)
