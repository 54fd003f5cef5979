"""The trainer: makes an update from a batch, and packs the policy for actors."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from apex_acer.algorithms import algorithm_class
from apex_acer.config import RunConfig
from apex_acer.config.seeds import derive_seed
from apex_acer.learner.gradient import Gradient, num_parts
from apex_acer.learner.optimizer import make_optimizer
from apex_acer.learner.ranks import ALONE, Ranks
from apex_acer.networks import weights
from apex_acer.networks.device import choose_device
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import Batch


class Update(NamedTuple):
    """The result of an update."""

    taken: bool
    """Whether the optimizer took its step; if not, something was not finite and nothing has changed."""
    metrics: dict[str, Tensor]
    priorities: Tensor
    """New priorities of the batch's items, `[B]`."""


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
        is_large = spec.is_image or config.network.is_wide  # smaller networks gain nothing from several threads
        on_cores = is_large and self.device.type == "cpu"
        parts = num_parts(config.learner.threads, config.learner.batch_size // ranks.count) if on_cores else 1
        self._gradient = Gradient(self.algorithm, self.optimizer, parts, ranks)
        self._policy: tuple[int, bytes] = (-1, b"")  # version, and the bytes that actors get

    @property
    def computes(self) -> str:
        """The device and the torso's precision, in words."""
        return f"{self.device}, {'bfloat16' if self.algorithm.network.precision else 'float32'}"

    def update(self, batch: Batch, env_steps: int, updates: int) -> Update | None:
        """One update on `batch`, after `updates` others.

        None if it holds no samples, because momentum alone must not change the weights.
        """
        output = self._gradient.compute(batch, updates)
        if not output.num_samples:
            return None
        norm, taken = self.optimizer.step(output.loss, env_steps, updates)
        if taken:
            self.algorithm.after_step(output.metrics, updates + 1)
        return Update(taken, {**output.metrics, "grad_norm": norm}, output.priorities)

    def policy(self, version: int) -> bytes:
        """The policy's weights as bytes for actors, packed once per version."""
        if self._policy[0] != version:
            self._policy = version, weights.pack_policy(self.algorithm.tensors(), version)
        return self._policy[1]

    def close(self) -> None:
        """Ends the threads."""
        self._gradient.close()
