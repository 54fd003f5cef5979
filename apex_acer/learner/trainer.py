"""The trainer: makes an update from a batch, and packs the policy for actors."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch
from torch import Tensor

from apex_acer.algorithms import algorithm_class
from apex_acer.algorithms.algorithm import has_separate_losses
from apex_acer.config import RunConfig
from apex_acer.config.seeds import derive_seed
from apex_acer.learner.gradient import Gradient, num_parts
from apex_acer.learner.optimizer import make_optimizer
from apex_acer.learner.ranks import ALONE, Ranks
from apex_acer.networks import weights
from apex_acer.networks.device import choose_device
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import Batch

log = logging.getLogger(__name__)


class Trainer:
    """The algorithm and its optimizer, on the learner's device."""

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, ranks: Ranks = ALONE) -> None:
        """Raises `ConfigError` if the device is not there."""
        self.device = choose_device(config.learner.device, "learner.device")
        torch.manual_seed(derive_seed(config.seed, "learner"))
        self.algorithm = algorithm_class(config.algorithm.name)(config, spec, self.device)
        if ranks.rank:  # its noise is its own, while its weights will be the first learner's
            torch.manual_seed(derive_seed(config.seed, "learner", 3, ranks.rank))
        self.optimizer = make_optimizer(config, self.algorithm.groups())
        threads = config.learner.threads if self.device.type == "cpu" else 1
        images = spec.has_images  # batches of anything smaller gain nothing from being split
        parts = num_parts(threads, config.learner.batch_size // ranks.count) if images else 1
        separate = has_separate_losses(self.algorithm) and not images
        losses = min(threads, config.algorithm.num_losses) if separate else 1
        self.gradient, self.ranks = Gradient(self.algorithm, self.optimizer, parts, ranks, losses), ranks
        self._policy = -1, b""  # version, and the bytes that actors get

    @property
    def computes(self) -> str:
        """The device and the torso's precision, in words."""
        return f"{self.device}, {'bfloat16' if self.algorithm.network.precision else 'float32'}"

    def update(self, batch: Batch, env_steps: int, updates: int) -> Update:
        """Has the algorithm learn from `batch`, after `updates` optimizer steps."""
        self.ranks.align(self.algorithm.statistics())  # before advantages are computed with them
        update = Update(self, env_steps, updates)
        self.algorithm.update(batch, update)
        self.ranks.align(self.algorithm.statistics())  # after an update that has moved them: all actors get the same
        return update

    def policy(self, version: int) -> bytes:
        """The policy's weights as bytes for actors, packed once per version."""
        if self._policy[0] != version:
            self._policy = version, weights.pack_policy(self.algorithm.tensors(), version)
        return self._policy[1]

    def pack_again(self) -> None:
        """Has `policy` pack the weights anew: the statistics of observations in them change without a new version."""
        self._policy = -1, b""

    def close(self) -> None:
        """Ends the threads."""
        self.gradient.close()


class Update:
    """The optimizer steps that an algorithm takes on one batch (`Descent`)."""

    def __init__(self, trainer: Trainer, env_steps: int, updates: int) -> None:
        """After `updates` steps."""
        self._trainer, self._env_steps, self._before = trainer, env_steps, updates
        self.metrics: list[Mapping[str, Tensor]] = []
        """Those of each step that was taken."""
        self.num_skipped = 0
        """Steps that were not taken because something was not finite; they have changed nothing."""
        self.priorities: Tensor | None = None
        """New priorities of the samples of the last step, `[B]`."""

    def step(self, batch: Batch) -> Mapping[str, Tensor]:
        """One optimizer step on the loss of `batch`; returns its metrics, none if it was skipped.

        A batch without samples takes no step, because momentum alone must not change the weights.
        """
        trainer, updates = self._trainer, self._before + len(self.metrics)
        output = trainer.gradient.compute(batch, updates)
        if not output.num_samples:
            return {}
        norm, taken = trainer.optimizer.step(output.loss, self._env_steps, updates)
        if not taken:
            log.warning("update %d was not finite and was skipped", updates)
            self.num_skipped += 1
            return {}
        trainer.algorithm.after_step(output.metrics, updates + 1)
        self.priorities = output.priorities
        self.count({**output.metrics, "grad_norm": norm})
        return self.metrics[-1]

    def count(self, metrics: Mapping[str, Tensor]) -> None:
        """Counts a step, with its metrics."""
        self.metrics.append(metrics)

    def add(self, tensor: Tensor) -> None:
        """Replaces `tensor` by its sum over all learners."""
        self._trainer.ranks.add(tensor)
