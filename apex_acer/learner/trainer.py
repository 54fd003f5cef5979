"""The trainer: makes updates from batches, and packs the policy for actors."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from apex_acer.algorithms import algorithm_class
from apex_acer.algorithms.samples import Samples
from apex_acer.config import RunConfig
from apex_acer.learner.gradient import make_gradient
from apex_acer.learner.optimizer import make_optimizer
from apex_acer.learner.ranks import ALONE, Ranks
from apex_acer.networks import weights
from apex_acer.networks.device import choose_device
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import Batch
from apex_acer.system.seeds import derive_seed

log = logging.getLogger(__name__)


@dataclass
class Update:
    """The update on one batch."""

    env_steps: int
    updates: int
    """Optimizer steps before it."""
    metrics: list[Mapping[str, Tensor]] = field(default_factory=list)
    """Metrics of each optimizer step that was taken."""
    num_skipped: int = 0
    """Steps that were skipped because the loss or the gradient was not finite; they have changed nothing."""
    priorities: Tensor | None = None
    """New priorities of the samples of the last step, `[B]`."""


class Trainer:
    """An algorithm and its optimizer, on the learner's device; it is the `Descent` by which the algorithm learns."""

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, ranks: Ranks = ALONE) -> None:
        """Raises `ConfigError` if there is no such device."""
        self.device = choose_device(config.learner.device, "learner.device")
        torch.manual_seed(derive_seed(config.seed, "learner"))
        self.algorithm = algorithm_class(config.algorithm.name).make(config, spec, self.device)
        if ranks.rank:  # each learner draws other noise; the weights will be the first learner's
            torch.manual_seed(derive_seed(config.seed, "learner", 3, ranks.rank))
        self.optimizer = make_optimizer(config, self.algorithm.groups())
        threads = config.learner.threads if self.device.type == "cpu" else 1
        batch_size = config.learner.batch_size // ranks.count
        self.gradient = make_gradient(self.algorithm, self.optimizer, threads, batch_size, ranks)
        self._ranks, self._update = ranks, Update(0, 0)
        self._policy = -1, b""  # version, and the bytes that actors get

    @property
    def computes(self) -> str:
        """The device and the torso's precision, such as `cpu, bfloat16`."""
        return f"{self.device}, {'bfloat16' if self.algorithm.network.precision else 'float32'}"

    def update(self, batch: Batch, env_steps: int, updates: int) -> Update:
        """Has the algorithm learn from `batch`, after `updates` optimizer steps."""
        self._update = update = Update(env_steps, updates)
        self._ranks.align(self.algorithm.statistics())  # before advantages are computed with them
        self.algorithm.update(self.algorithm.samples.make(batch), self)
        if update.metrics:
            self.algorithm.observe_batch(batch)
        self._ranks.align(self.algorithm.statistics())  # the update may have changed them; all actors get the same
        return update

    def step(self, samples: Samples) -> Mapping[str, Tensor]:
        """One optimizer step on the loss of `samples`; returns its metrics, none if it was skipped.

        A batch without samples takes no step, because momentum alone must not change the weights.
        """
        update = self._update
        updates = update.updates + len(update.metrics)
        due = self.optimizer.due(updates)
        output = self.gradient.compute(samples, due)
        if not output.num_samples:
            return {}
        norm, stepped = self.optimizer.step(output.loss, update.env_steps, due)
        if not stepped:
            log.warning("update %d was not finite and was skipped", updates)
            update.num_skipped += 1
            return {}
        self.algorithm.after_step(updates + 1, due)
        update.priorities = output.priorities
        self.count({**output.metrics, "grad_norm": norm})
        return update.metrics[-1]

    def count(self, metrics: Mapping[str, Tensor]) -> None:
        """Counts an optimizer step, with its metrics."""
        self._update.metrics.append(metrics)

    def add(self, tensor: Tensor) -> None:
        """Replaces `tensor` by its sum over all learners."""
        self._ranks.add(tensor)

    def policy(self, version: int) -> bytes:
        """The policy's weights as bytes for actors, packed once per version."""
        if self._policy[0] != version:
            self._policy = version, weights.pack_policy(self.algorithm.tensors(), version)
        return self._policy[1]

    def pack_again(self) -> None:
        """Makes `policy` pack anew: its statistics of observations change without a new version."""
        self._policy = -1, b""

    def close(self) -> None:
        self.gradient.close()
