"""How replayed samples are drawn from a storage: uniformly, or in proportion to priorities."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from apex_acer.config import ReplayConfig
from apex_acer.protocol.specification import Array
from apex_acer.protocol.unroll import PRIORITY, Unroll
from apex_acer.replay.storage import Storage
from apex_acer.replay.sum_tree import SumTree

LEAST_PRIORITY = 1e-6  # added to each priority


class Sampler(Protocol):
    """Draws samples of a storage by their numbers, with replacement."""

    generator: torch.Generator
    """What it draws with; its state is saved with a run."""

    def insert(self, slots: Tensor, unroll: Unroll) -> None:
        """Hears that the sequences of `unroll` are in `slots` `[N]` of the storage."""

    def draw(self, num: int) -> Tensor:
        """Draws `num` samples, `[num]` int64; raises ValueError if the storage is empty."""

    def least_probability(self, samples: Tensor) -> float:
        """The lowest of the probabilities with which `samples` `[B]` are drawn; infinite if there are none."""

    def importance(self, samples: Tensor, progress: float, least: float | None = None) -> Tensor:
        """The importance weights `[B]` float32 of `samples` in a loss, when the share `progress` of the run is over.

        The sample of probability `least`, by default the lowest of `samples`, has weight 1.
        """

    def set_priorities(self, samples: Tensor, priorities: Tensor, since: int) -> None:
        """Sets the priorities `[B]` of `samples` `[B]`, drawn when `since` sequences had been inserted.

        Those whose sequence was overwritten since then are left as they are.
        """

    def arrays(self) -> dict[str, Array]:
        """What it knows of the samples held, by name; may be empty."""

    def restore(self, fill: Callable[[str, Array], None]) -> None:
        """Takes what `fill` writes into each of `arrays`; the storage was restored before."""


class UniformSampler:
    """Draws every sample with the same probability; priorities are nothing to it."""

    def __init__(self, storage: Storage, seed: int) -> None:
        self._storage = storage
        self.generator = torch.Generator().manual_seed(seed)

    def insert(self, slots: Tensor, unroll: Unroll) -> None: ...

    def draw(self, num: int) -> Tensor:
        _require_some(self._storage)
        return torch.randint(self._storage.num_samples, (num,), generator=self.generator)

    def least_probability(self, samples: Tensor) -> float:
        return 1 / self._storage.num_samples if len(samples) else math.inf

    def importance(self, samples: Tensor, progress: float, least: float | None = None) -> Tensor:
        return torch.ones(len(samples))

    def set_priorities(self, samples: Tensor, priorities: Tensor, since: int) -> None: ...

    def arrays(self) -> dict[str, Array]:
        return {}

    def restore(self, fill: Callable[[str, Array], None]) -> None: ...


class PrioritizedSampler:
    """Draws samples in proportion to priority ^ alpha (Schaul et al. 2016, arXiv 1511.05952, proportional variant).

    A new sample has the priority that its actor gave it (a whole sequence the highest of its steps), or else the highest
    of all; a masked step is never drawn. The oldest sequence is overwritten first, whatever its priority, as in Ape-X
    (arXiv 1803.00933).
    """

    def __init__(self, storage: Storage, seed: int, settings: ReplayConfig) -> None:
        self._storage, self._settings = storage, settings
        self.generator = torch.Generator().manual_seed(seed)
        self._tree = SumTree(storage.capacity * storage.starts)

    def insert(self, slots: Tensor, unroll: Unroll) -> None:
        starts, given = self._storage.starts, unroll.extras.get(PRIORITY)
        samples = slots.numpy()[:, None] * starts + np.arange(starts)  # [N, starts]
        if given is None:
            weights = np.full(samples.shape, self._weights().max(initial=0.0) or 1.0)
        else:
            weights = self._raised(given.T if starts > 1 else given.T.max(1, keepdims=True))
        drawable = self._storage.count_steps(torch.from_numpy(samples)) > 0
        self._tree.put(samples.ravel(), np.where(drawable, weights, 0.0).ravel())

    def draw(self, num: int) -> Tensor:
        """Draws `num` samples, one from each of `num` equal shares of the total weight (stratified sampling)."""
        _require_some(self._storage)
        within = torch.rand(num, generator=self.generator, dtype=torch.float64)
        return torch.from_numpy(self._tree.draw(((torch.arange(num) + within) / num).numpy()))

    def least_probability(self, samples: Tensor) -> float:
        return float(self._probabilities(samples).min(initial=math.inf))

    def importance(self, samples: Tensor, progress: float, least: float | None = None) -> Tensor:
        """(N P(i)) ^ −beta, divided by the largest weight in the batch."""
        start, final = self._settings.importance_exponent, self._settings.importance_exponent_final
        exponent = start + (final - start) * min(progress, 1.0)
        probabilities = self._probabilities(samples)
        rarest = probabilities.min() if least is None else least
        return torch.from_numpy((rarest / probabilities) ** exponent).float()

    def set_priorities(self, samples: Tensor, priorities: Tensor, since: int) -> None:
        index, raised = samples.numpy(), self._raised(priorities.cpu().numpy())
        current = self._storage.are_held(samples, since) & (self._tree[index] > 0)
        self._tree.put(index[current], raised[current])

    def arrays(self) -> dict[str, Array]:
        return {"weights": self._weights()}

    def restore(self, fill: Callable[[str, Array], None]) -> None:
        weights = self._weights()
        fill("weights", weights)
        self._tree.put(np.arange(len(weights)), weights)

    def _probabilities(self, samples: Tensor) -> Array:
        probabilities: Array = self._tree[samples.numpy()] / self._tree.total
        return probabilities

    def _weights(self) -> Array:
        return self._tree[np.arange(self._storage.num_samples)]

    def _raised(self, priorities: Array) -> Array:
        """The weights of `priorities`, above zero so that every sample is drawn now and then."""
        raised: Array = (priorities.astype(np.float64) + LEAST_PRIORITY) ** self._settings.priority_exponent
        return raised


def _require_some(storage: Storage) -> None:
    if not len(storage):
        raise ValueError("require a sequence in replay before sampling, got none")
