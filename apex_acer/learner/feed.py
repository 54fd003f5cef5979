"""Selects the items of each batch: fresh segments, each once and in order of arrival, or items drawn from replay."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from apex_acer.algorithms import make_agent
from apex_acer.config import ConfigError, RunConfig
from apex_acer.config.seeds import derive_seed
from apex_acer.learner.mixture import Mixture, Portions
from apex_acer.learner.ranks import ALONE, Ranks
from apex_acer.networks.device import CPU
from apex_acer.protocol.specification import Array, EnvironmentSpec
from apex_acer.protocol.unroll import Batch, Layout, Unroll
from apex_acer.replay.buffer import PrioritizedReplay, UniformReplay


class Selection(NamedTuple):
    """The items of a batch and what replay must know of them."""

    items: Tensor
    """`[B]` int64; the first `num_fresh` of them are trained on for the first time."""
    num_fresh: int
    importance: Tensor
    """`[B]` weights in the loss."""
    num_inserted: int
    """Segments that had been inserted into replay when these items were selected."""
    num_blank: int
    """Items at the end that only fill the batch and are masked out."""


class Feed:
    """Replay, and the queue of its segments that were not trained on yet.

    Each of several learners has its own segments and contributes an equal part of every batch; if it has too few, blank
    items fill its part.
    """

    def __init__(self, replay: UniformReplay, mixture: Mixture, ranks: Ranks = ALONE) -> None:
        self.replay, self.mixture, self._ranks = replay, mixture, ranks
        self._fresh: deque[int] = deque()  # slots

    @property
    def num_fresh(self) -> int:
        """Segments in the queue."""
        return len(self._fresh)

    def insert(self, unroll: Unroll, weights_version: int) -> None:
        """Puts an unroll's segments into replay, and into the queue if the algorithm trains on fresh segments."""
        slots = self.replay.insert(unroll, weights_version)
        if self.mixture.trains_fresh:
            self._fresh.extend(slots.tolist())

    def select(self, progress: float = 0.0) -> Selection:
        """The items of the next batch, fresh ones first; `progress` is the share of the schedules that is over."""
        portions = self.mixture.next_portions()
        fresh = self._take_fresh(portions)
        drawn, importance = self._draw(portions.replayed, progress)
        num_blank = self.mixture.batch_size - len(fresh) - len(drawn)
        items = torch.cat([fresh, drawn, fresh.new_zeros(num_blank)])
        importance = torch.cat([torch.ones(len(fresh)), importance, torch.ones(num_blank)])
        return Selection(items, len(fresh), importance, self.replay.num_inserted, num_blank)

    def _take_fresh(self, portions: Portions) -> Tensor:
        slots = [self._fresh.popleft() for _ in range(portions.fresh[self._ranks.rank])]
        fresh = torch.tensor(slots, dtype=torch.int64)
        if portions.fresh.any():
            steps = np.zeros(self.mixture.batch_size)
            steps[: len(slots)] = self.replay.count_steps(fresh)
            self.mixture.count_fresh(self._ranks.gather(steps).ravel())
        return fresh

    def _draw(self, num: int, progress: float) -> tuple[Tensor, Tensor]:
        """`num` items from replay, and their weights relative to the rarest item of all learners."""
        none = torch.empty(0, dtype=torch.int64)
        if not num:
            return none, torch.ones(0)
        drawn = self.replay.draw(num) if len(self.replay) else none
        own = float(self.replay.count_steps(drawn).sum()), self.replay.least_probability(drawn)
        steps, least = self._ranks.gather(own).T
        self.mixture.pace.count_replayed(int(steps.sum()))
        return drawn, self.replay.importance(drawn, progress, least.min())

    def gather(self, selection: Selection) -> Batch:
        """The batch of the selected items."""
        batch = self.replay.gather(selection.items, selection.num_fresh, selection.importance)
        if selection.num_blank:
            batch.mask[:, -selection.num_blank :] = False
        return batch

    def set_priorities(self, selection: Selection, priorities: Tensor) -> None:
        """Gives replay the new priorities `[B]` of the selected items."""
        given = len(selection.items) - selection.num_blank
        self.replay.set_priorities(selection.items[:given], priorities[:given], selection.num_inserted)

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`; `segments` is valid only together with `replay.arrays`."""
        return {**self.drawing(), "segments": {"inserted": self.replay.num_inserted, "fresh": list(self._fresh)}}

    def drawing(self) -> dict[str, Any]:
        """The part of the state that changes with every selection."""
        return {"pace": self.mixture.pace.state(), "sampling": self.replay.sampling_state()}

    def restore(self, state: Mapping[str, Any], fill: Callable[[str, Array], None] | None) -> None:
        """Continues from a `state`, with the segments that `fill` writes into each of `replay.arrays`.

        Without `fill` replay begins empty and nothing is owed, so that there is no burst of updates. The learners must
        agree (`Mixture.accept`) before the next batch.
        """
        self.mixture.pace.restore(state["pace"], keep_credit=fill is not None)
        if self._ranks.rank == 0:  # the other learners keep their own generators
            self.replay.restore_sampling(state["sampling"])
        if fill:
            segments = state["segments"]
            self.replay.restore(int(segments["inserted"]), fill)
            self._fresh = deque(segments["fresh"])


def make_feed(config: RunConfig, shapes: Layout, device: torch.device, ranks: Ranks = ALONE) -> Feed:
    """The feed of a learner on `device`, with its share of replay; raises `ConfigError` if the GPU has no room for that."""
    replay_device = device if config.replay.device == "learner" else CPU
    steps = capacity(config) // ranks.count
    try:
        replay = make_replay(config, shapes, steps, replay_device, ranks.rank)
    except torch.OutOfMemoryError:
        what = f"{replay_device} has no room for {steps:,} steps; give cpu, or a smaller replay.capacity"
        raise ConfigError(f"replay.device: {what}") from None
    return Feed(replay, Mixture(config, ranks.count), ranks)


def capacity(config: RunConfig) -> int:
    """Environment steps that all learners hold.

    Without replay these are the batch that is computed, the next one, which a single learner may have whole, and the
    unroll that completes it.
    """
    if config.algorithm.replay_ratio:
        return config.replay.capacity
    segments = 2 * config.learner.batch_size + config.actors.environments
    return segments * config.algorithm.unroll_length * config.learner.count


def unroll_layout(config: RunConfig, spec: EnvironmentSpec) -> Layout:
    """The layout of a run's unrolls."""
    return make_agent(config, spec).layout


def make_replay(
    config: RunConfig, shapes: Layout, env_steps: int, device: torch.device = CPU, rank: int = 0
) -> UniformReplay:
    """A replay memory of `env_steps` environment steps on `device`; each `rank` draws with its own generator."""
    capacity = env_steps // config.algorithm.unroll_length
    seed = derive_seed(config.seed, "learner", 1, *([rank] if rank else []))
    if config.replay.sampling == "uniform":
        return UniformReplay(shapes, capacity, seed, device, config.algorithm.sampling.n_steps)
    return PrioritizedReplay(shapes, capacity, seed, device, config.algorithm.sampling.n_steps, settings=config.replay)
