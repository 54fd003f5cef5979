"""What the next update learns from: fresh segments once each, in order, and replayed ones as the replay ratio says."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from apex_acer.config import RunConfig
from apex_acer.pace import Pace
from apex_acer.replay import UniformReplay
from apex_acer.seeds import derive_seed
from apex_acer.trajectory import Array, Batch, Layout, Unroll


class Feed:
    """Replay, its pace, and the segments that were accepted and not yet trained on."""

    def __init__(self, config: RunConfig, layout: Layout) -> None:
        settings, k = config.algorithm, config.algorithm.unroll_length
        self._joint = settings.mix == "joint"
        self._start, self._batch_size = config.replay.start, config.learner.batch_size
        # of a joint batch the share that keeps the ratio
        self._fresh_in_batch = math.ceil(self._batch_size / (1 + settings.replay_ratio if self._joint else 1))
        self._batch_steps = self._batch_size * k
        self._replay = UniformReplay(layout, config.replay.capacity // k, derive_seed(config.seed, "learner", 1))
        # joint batches hold their replay in themselves, so nothing is drawn for them
        draw = "fixed" if self._joint else settings.replay_draw
        self._pace = Pace(settings.replay_ratio, derive_seed(config.seed, "learner", 2), draw)
        self._fresh: deque[int] = deque()  # slots

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
        return len(self._fresh)

    @property
    def ratio(self) -> float:
        """Replayed ÷ fresh steps since replay held `replay.start`."""
        return self._pace.ratio

    @property
    def ready(self) -> bool:
        """Whether there is a batch to learn from now."""
        return self._pace.owes(self._batch_steps) or self.num_fresh >= self._fresh_in_batch

    def insert(self, unroll: Unroll, weights_version: int) -> None:
        """Puts an unroll's segments into replay; each waits to be trained on."""
        self._fresh.extend(self._replay.insert(unroll, weights_version).tolist())

    def next_batch(self) -> tuple[Batch, int]:
        """The batch that is `ready` and how many of its segments, the first ones, are fresh; replay that is owed first."""
        slots, num_fresh = self._next_replayed() if self._pace.owes(self._batch_steps) else self._next_fresh()
        return self._replay.gather(slots, num_fresh), num_fresh

    def _next_replayed(self) -> tuple[Tensor, int]:
        slots = self._replay.draw(self._batch_size)
        self._pace.count_replayed(int(self._replay.count_steps(slots).sum()))
        return slots, 0

    def _next_fresh(self) -> tuple[Tensor, int]:
        """Segments not trained on yet; with `algorithm.mix` joint, replayed ones beside them."""
        slots = torch.tensor([self._fresh.popleft() for _ in range(self._fresh_in_batch)])
        if self._replay.num_steps < self._start:
            return slots, self._fresh_in_batch
        replayed = self._replay.draw(self._batch_size - self._fresh_in_batch)
        self._pace.count_fresh(self._replay.count_steps(slots))
        self._pace.count_replayed(int(self._replay.count_steps(replayed).sum()))
        return torch.cat([slots, replayed]), self._fresh_in_batch

    # ── checkpoints ──

    def state(self) -> dict[str, Any]:
        """Plain values that go on with a run, and `segments`, which count only together with `arrays`."""
        return {
            "pace": self._pace.state(),
            "sampling": self._replay.sampling_state(),
            "segments": {"inserted": self._replay.num_inserted, "fresh": list(self._fresh)},
        }

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
