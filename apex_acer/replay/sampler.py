"""How replayed samples are drawn from a storage: uniformly, in proportion to priorities, or half of them with a reward."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from apex_acer.config import ReplayConfig
from apex_acer.protocol.specification import Array
from apex_acer.protocol.unroll import PRIORITY, Unroll
from apex_acer.replay.storage import Read, Storage
from apex_acer.replay.sum_tree import SumTree

LEAST_PRIORITY = 1e-6  # added to each priority, so that every sample is drawn now and then


class Sampler:
    """Draws samples of a storage by their numbers, with replacement and with the same probability."""

    def __init__(self, storage: Storage, seed: int) -> None:
        self._storage = storage
        self.generator = torch.Generator().manual_seed(seed)
        """The generator of the draws; its state is saved with a run."""

    def insert(self, slots: Tensor, unroll: Unroll) -> None:
        """Takes first priorities: the sequences of `unroll` are in `slots` `[N]` of the storage."""

    def draw(self, num: int) -> Tensor:
        """Draws `num` samples, `[num]` int64; raises ValueError if the storage is empty."""
        self._require_sequences()
        return torch.randint(self._storage.num_samples, (num,), generator=self.generator)

    def probabilities(self, samples: Tensor) -> Array:
        """Probabilities of `samples` `[B]`, `[B]` float64; all 1 if they are not to be corrected for."""
        return np.ones(len(samples))

    def importance(self, probabilities: Array, progress: float, least: float) -> Tensor:
        """Importance weights `[B]` float32 in a loss for samples of `probabilities` `[B]`; 1 for one of `least`.

        `progress` is the share of the run that is over.
        """
        return torch.ones(len(probabilities))

    def set_priorities(self, samples: Tensor, priorities: Tensor, since: int) -> None:
        """Sets the priorities `[B]` of `samples` `[B]`, drawn when `since` sequences had been inserted.

        Samples whose sequence was overwritten since then are left as they are.
        """

    def arrays(self) -> dict[str, Array]:
        """What must be saved for the samples held, by name; may be empty."""
        return {}

    def restore(self, read: Read) -> None:
        """Takes each of `arrays` from where it was saved; the storage was restored before."""

    def _require_sequences(self) -> None:
        if not len(self._storage):
            raise ValueError("require a sequence in replay before sampling, got none")


class PrioritizedSampler(Sampler):
    """Draws samples in proportion to priority ^ alpha (Schaul et al. 2016, arXiv 1511.05952, proportional variant).

    A new sample has the priority that its actor gave it (a whole sequence the highest of its steps), or else the highest
    of all; a masked step is never drawn. The oldest sequence is overwritten first, whatever its priority, as in Ape-X
    (arXiv 1803.00933).
    """

    def __init__(self, storage: Storage, seed: int, settings: ReplayConfig) -> None:
        super().__init__(storage, seed)
        self._settings = settings
        self._tree = SumTree(storage.capacity * storage.starts)

    def insert(self, slots: Tensor, unroll: Unroll) -> None:
        starts, priorities = self._storage.starts, unroll.extras.get(PRIORITY)
        samples = slots.numpy()[:, None] * starts + np.arange(starts)  # [N, starts]
        if priorities is None:
            weights = np.full(samples.shape, self._weights().max(initial=0.0) or 1.0)
        else:
            weights = self._raised(priorities.T if starts > 1 else priorities.T.max(1, keepdims=True))
        drawable = self._storage.count_steps(torch.from_numpy(samples)) > 0
        self._tree.put(samples.ravel(), np.where(drawable, weights, 0.0).ravel())

    def draw(self, num: int) -> Tensor:
        """Draws `num` samples, one from each of `num` equal shares of the total weight (stratified sampling)."""
        self._require_sequences()
        within = torch.rand(num, generator=self.generator, dtype=torch.float64)
        return torch.from_numpy(self._tree.draw(((torch.arange(num) + within) / num).numpy()))

    def probabilities(self, samples: Tensor) -> Array:
        probabilities: Array = self._tree[samples.numpy()] / self._tree.total
        return probabilities

    def importance(self, probabilities: Array, progress: float, least: float) -> Tensor:
        """(N P(i)) ^ −beta, divided by the weight of a sample of probability `least`, the largest in the batch."""
        start, final = self._settings.importance_exponent, self._settings.importance_exponent_final
        exponent = start + (final - start) * min(progress, 1.0)
        return torch.from_numpy((least / probabilities) ** exponent).float()

    def set_priorities(self, samples: Tensor, priorities: Tensor, since: int) -> None:
        index, raised = samples.numpy(), self._raised(priorities.cpu().numpy())
        current = self._storage.are_held(samples, since) & (self._tree[index] > 0)
        self._tree.put(index[current], raised[current])

    def arrays(self) -> dict[str, Array]:
        return {"weights": self._weights()}

    def restore(self, read: Read) -> None:
        samples = np.arange(self._storage.num_samples)
        self._tree.put(samples, read("weights", samples.shape, "float64"))

    def _weights(self) -> Array:
        return self._tree[np.arange(self._storage.num_samples)]

    def _raised(self, priorities: Array) -> Array:
        raised: Array = (priorities.astype(np.float64) + LEAST_PRIORITY) ** self._settings.priority_exponent
        return raised


class RewardedSampler(Sampler):
    """Draws samples with a non-zero reward and samples without one in turn (Jaderberg et al. 2017, arXiv 1611.05397).

    A sequence has one if an unmasked step has, a transition if its first step has. While replay lacks one of the two kinds,
    all samples are of the other.
    """

    def __init__(self, storage: Storage, seed: int) -> None:
        super().__init__(storage, seed)
        self._rewarded = np.zeros(storage.capacity * storage.starts, bool)

    def insert(self, slots: Tensor, unroll: Unroll) -> None:
        rewarded, starts = (unroll.reward != 0) & unroll.mask, self._storage.starts  # [k, N]
        of_samples = rewarded.T if starts > 1 else rewarded.any(0)[:, None]  # [N, starts]
        self._rewarded.reshape(-1, starts)[slots.numpy()] = of_samples

    def draw(self, num: int) -> Tensor:
        """Draws `num` samples, alternately of both kinds; which kind is first is random."""
        self._require_sequences()
        rewarded = torch.from_numpy(self._held())
        kinds = [kind for kind in (rewarded.nonzero(), (~rewarded).nonzero()) if len(kind)]
        first = torch.randint(len(kinds), (), generator=self.generator)
        chosen = (torch.arange(num) + first) % len(kinds)
        places = [torch.randint(len(kind), (num,), generator=self.generator) for kind in kinds]
        drawn = torch.stack([kind[place, 0] for kind, place in zip(kinds, places, strict=True)])  # [kinds, num]
        return drawn.gather(0, chosen.unsqueeze(0)).squeeze(0)

    def probabilities(self, samples: Tensor) -> Array:
        held = self._held()
        sizes = np.bincount(held, minlength=2)  # of the kinds without and with a reward
        probabilities: Array = 1 / (np.count_nonzero(sizes) * sizes[held[samples.numpy()].astype(int)])
        return probabilities

    def importance(self, probabilities: Array, progress: float, least: float) -> Tensor:
        """1 / (N P(i)), whose mean over draws is 1."""
        return torch.from_numpy(1 / (self._storage.num_samples * probabilities)).float()

    def arrays(self) -> dict[str, Array]:
        return {"rewarded": self._held()}

    def restore(self, read: Read) -> None:
        held = self._held()
        held[...] = read("rewarded", held.shape, "bool")

    def _held(self) -> Array:
        """Whether each of the samples held has a non-zero reward; a view."""
        return self._rewarded[: self._storage.num_samples]
