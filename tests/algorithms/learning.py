"""What tests of all algorithms share: samples of a stored batch, and the loss on them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from apex_acer.algorithms.algorithm import Algorithm, LossOutput
from apex_acer.algorithms.samples import Samples
from apex_acer.protocol.unroll import Batch


@dataclass(frozen=True)
class NoisyBatch(Batch):
    """A batch with the random numbers for the loss of it."""

    noise: dict[str, torch.Tensor] = field(default_factory=dict)


def samples_of(algorithm: Algorithm, batch: Batch) -> Samples:
    """What `algorithm` learns from, made of `batch`."""
    return replace(algorithm.samples.make(batch), noise=getattr(batch, "noise", {}))


def loss_of(algorithm: Algorithm, batch: Batch) -> LossOutput:
    """The loss on `batch`."""
    return algorithm.loss(samples_of(algorithm, batch))
