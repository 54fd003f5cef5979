"""The items of each batch: fresh segments once each, in the order in which they came, and those drawn from replay."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from apex_acer.algorithms import algorithm_class
from apex_acer.algorithms.algorithm import Feeding
from apex_acer.config import ConfigError, RunConfig
from apex_acer.config.seeds import derive_seed
from apex_acer.learner.mixture import Mixture, Portions
from apex_acer.learner.ranks import ALONE, Ranks
from apex_acer.networks.device import CPU
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import Array, Batch, Layout, Unroll, layout
from apex_acer.replay.buffer import PrioritizedReplay, UniformReplay


class Chosen(NamedTuple):
    """Items of a batch `[B]`, of which the first `num_fresh` are trained on for the first time, and their weights `[B]`."""

    items: Tensor
    num_fresh: int
    importance: Tensor
    num_inserted: int
    """Segments inserted when they were chosen."""
    num_blank: int
    """Items at the end that are there only to fill the batch, and are masked out."""


class Feed:
    """Replay, and the queue of segments in it that are still to be trained on for the first time.

    Each of several learners has a feed of its own segments and gives an equal part of every batch; a learner that lacks
    some fills its part up with blanks.
    """

    def __init__(self, replay: UniformReplay, mixture: Mixture, ranks: Ranks = ALONE) -> None:
        """`mixture` says what each batch is made of."""
        self.replay, self.mixture, self._ranks = replay, mixture, ranks
        self._fresh: deque[int] = deque()  # slots

    @property
    def num_fresh(self) -> int:
        """Segments that are still to be chosen for the first time."""
        return len(self._fresh)

    def insert(self, unroll: Unroll, weights_version: int) -> None:
        """Puts an unroll's segments into replay; if they are to be trained on as they come in, each waits for that."""
        slots = self.replay.insert(unroll, weights_version)
        if self.mixture.trains_fresh:
            self._fresh.extend(slots.tolist())

    def choose(self, progress: float = 0.0) -> Chosen:
        """The items of the next batch, the fresh ones first.

        `progress` is the share of the schedules that is over; it may exceed 1.
        """
        portions = self.mixture.next_portions()
        fresh = self._take_fresh(portions)
        drawn, importance = self._draw(portions.replayed, progress)
        num_blank = self.mixture.batch_size - len(fresh) - len(drawn)
        items = torch.cat([fresh, drawn, fresh.new_zeros(num_blank)])
        importance = torch.cat([torch.ones(len(fresh)), importance, torch.ones(num_blank)])
        return Chosen(items, len(fresh), importance, self.replay.num_inserted, num_blank)

    def _take_fresh(self, portions: Portions) -> Tensor:
        """The oldest fresh segments, which now count as such."""
        slots = [self._fresh.popleft() for _ in range(portions.fresh[self._ranks.rank])]
        fresh = torch.tensor(slots, dtype=torch.int64)
        if portions.fresh.any():
            steps = np.zeros(self.mixture.batch_size)
            steps[: len(slots)] = self.replay.count_steps(fresh)
            self.mixture.count_fresh(self._ranks.gather(steps).ravel())
        return fresh

    def _draw(self, num: int, progress: float) -> tuple[Tensor, Tensor]:
        """`num` items from replay, and their weights, which are relative to the rarest item of all learners."""
        none = torch.empty(0, dtype=torch.int64)
        if not num:
            return none, torch.ones(0)
        drawn = self.replay.draw(num) if len(self.replay) else none
        own = float(self.replay.count_steps(drawn).sum()), self.replay.least_probability(drawn)
        steps, least = self._ranks.gather(own).T
        self.mixture.pace.count_replayed(int(steps.sum()))
        return drawn, self.replay.importance(drawn, progress, least.min())

    def gather(self, chosen: Chosen) -> Batch:
        """The batch of the `chosen` items."""
        batch = self.replay.gather(chosen.items, chosen.num_fresh, chosen.importance)
        if chosen.num_blank:
            batch.mask[:, -chosen.num_blank :] = False
        return batch

    def set_priorities(self, chosen: Chosen, priorities: Tensor) -> None:
        """Those `[B]` of the `chosen` items, as they were learned from."""
        given = len(chosen.items) - chosen.num_blank
        self.replay.set_priorities(chosen.items[:given], priorities[:given], chosen.num_inserted)

    # ── checkpoints ──

    def state(self) -> dict[str, Any]:
        """Plain values that go on with a run, and `segments`, which count only together with `replay.arrays`."""
        return {**self.drawing(), "segments": {"inserted": self.replay.num_inserted, "fresh": list(self._fresh)}}

    def drawing(self) -> dict[str, Any]:
        """The part of the state that moves on with every batch that is chosen."""
        return {"pace": self.mixture.pace.state(), "sampling": self.replay.sampling_state()}

    def restore(self, state: Mapping[str, Any], fill: Callable[[str, Array], None] | None) -> None:
        """Goes on from a `state`, with the segments that `fill` puts into each of `replay.arrays`; then all are to agree.

        If there is no `fill`, replay begins empty: what was owed of it is dropped with it, so that there is no burst of
        updates, and none before `replay.start` is reached again.
        """
        self.mixture.pace.restore(state["pace"], keep_credit=fill is not None)
        if self._ranks.rank == 0:  # the others go on drawing in their own ways
            self.replay.restore_sampling(state["sampling"])
        if fill:
            segments = state["segments"]
            self.replay.restore(int(segments["inserted"]), fill)
            self._fresh = deque(segments["fresh"])


def make_feed(config: RunConfig, shapes: Layout, device: torch.device, ranks: Ranks = ALONE) -> Feed:
    """The feed of a learner on `device`, with replay there if `replay.device` says so; each of several has a part of it."""
    feeding = algorithm_class(config.algorithm.name).feeding(config)
    replay_device = device if config.replay.device == "learner" else CPU
    steps = config.replay.capacity
    try:
        replay = make_replay(config, feeding, shapes, steps // ranks.count, replay_device, ranks.rank)
    except torch.OutOfMemoryError:
        raise ConfigError(
            f"replay.device: {replay_device} has no room for {steps:,} steps; give cpu, or a smaller replay.capacity"
        ) from None
    return Feed(replay, Mixture(config, feeding, ranks.count), ranks)


def unroll_layout(config: RunConfig, spec: EnvironmentSpec) -> Layout:
    """The layout of a run's unrolls."""
    algorithm, k = algorithm_class(config.algorithm.name), config.algorithm.unroll_length
    return layout(spec, k, algorithm.behaviour_shapes(config, spec), algorithm.state_shapes(config))


def make_replay(
    config: RunConfig, feeding: Feeding, shapes: Layout, env_steps: int, device: torch.device = CPU, rank: int = 0
) -> UniformReplay:
    """The replay that `config.replay` asks for, of so many environment steps, on `device`; each `rank` draws otherwise."""
    capacity = env_steps // config.algorithm.unroll_length
    seed = derive_seed(config.seed, "learner", 1, *([rank] if rank else []))
    if config.replay.sampling == "uniform":
        return UniformReplay(shapes, capacity, seed, device, feeding.window)
    return PrioritizedReplay(shapes, capacity, seed, device, feeding.window, settings=config.replay)
