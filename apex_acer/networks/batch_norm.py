"""Batch renormalisation as CrossQ has it (arXiv 1902.05605, version 4), and fully connected layers with it.

A pass over a batch with a mask uses the batch's moments, a pass without one the running moments, which are buffers: they
travel with the weights to actors, files and exported policies. A loss must change nothing if its step is skipped, so that a
pass only notes its moments, and `advance` adds them to the running ones after the step.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import Tensor, nn

from apex_acer.config import NetworkConfig
from apex_acer.networks.torsos import ACTIVATIONS, linear

DECAY = 0.99  # of the running moments, per batch
EPS = 1e-3  # added to variances
WARM_UP = 100_000  # batches that are normalised by their own moments alone
MAX_RATIO, MAX_OFFSET = 3.0, 5.0  # between a batch's moments and the running ones, of Ioffe 2017


class Normalisation(NamedTuple):
    """The function (x − `mean`) · `scale` + `shift`, each `[..., 1, F]`."""

    mean: Tensor
    scale: Tensor
    shift: Tensor

    def apply(self, x: Tensor) -> Tensor:
        """The normalised `x` `[..., B, F]`, in the type of the moments if that is wider."""
        return torch.addcmul(self.shift, x - self.mean, self.scale)


class BatchRenorm(nn.Module):
    """Batch renormalisation (Ioffe 2017, arXiv 1702.03275) of inputs `[..., B, F]`, with moments over B.

    After `WARM_UP` batches, in which it is batch normalisation, a batch is moved towards the running moments as far as
    `MAX_RATIO` and `MAX_OFFSET` allow; gradients take the move for constant.
    """

    count: Tensor
    """Number of batches in the running moments, an int64 scalar."""
    mean: Tensor
    variance: Tensor

    def __init__(self, *shape: int) -> None:
        """`shape` is `[..., 1, F]`; axes before the batch's are normalised separately."""
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.ones(shape))
        self._noted = self.mean, self.variance

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The normalised `x` `[..., B, F]`: by the moments of its rows with a true `mask` `[B]`, or by the running ones."""
        if mask is None:
            return self.running().apply(x)
        with torch.autocast(x.device.type, enabled=False):  # it would round the moments
            return self._normalise(x.to(self.weight.dtype), mask)

    def running(self) -> Normalisation:
        """Normalisation by the running moments."""
        return Normalisation(self.mean, self.weight * (self.variance + EPS).rsqrt(), self.bias)

    def _normalise(self, x: Tensor, mask: Tensor) -> Tensor:
        weight = (mask.to(x.dtype) / mask.sum().clamp(min=1)).expand(*x.shape[:-2], 1, -1)  # [..., 1, B]
        mean = weight @ x
        centred = x - mean
        variance = weight @ centred.square()
        self._noted = mean.detach(), variance.detach()
        std = (variance + EPS).sqrt()
        ratio, offset = self._correction(mean.detach(), std.detach())
        return torch.addcmul(self.bias + self.weight * offset, centred, self.weight * ratio / std)

    def _correction(self, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
        """Algorithm 1's r and d: with them (x − mean) / std · r + d is near a normalisation by the running moments."""
        running_std, is_warm = (self.variance + EPS).sqrt(), self.count >= WARM_UP
        ratio = (std / running_std).clamp(1 / MAX_RATIO, MAX_RATIO)
        offset = ((mean - self.mean) / running_std).clamp(-MAX_OFFSET, MAX_OFFSET)
        return torch.where(is_warm, ratio, 1.0), torch.where(is_warm, offset, 0.0)

    def advance(self) -> None:
        """Moves the running moments towards those of the newest batch."""
        for running, noted in zip((self.mean, self.variance), self._noted, strict=True):
            running.lerp_(noted, 1 - DECAY)
        self.count += 1


def batch_renorms(module: nn.Module) -> list[BatchRenorm]:
    """The layers of `module` that are batch renormalisation, in its order."""
    return [layer for layer in module.modules() if isinstance(layer, BatchRenorm)]


def advance(module: nn.Module) -> None:
    """Moves the running moments of all layers of `module` towards those of the newest batch."""
    for layer in batch_renorms(module):
        layer.advance()


class NormalisedLayers(nn.Module):
    """The fully connected layers of `config`, with batch renormalisation of the inputs and after each activation."""

    def __init__(self, config: NetworkConfig, width: int) -> None:
        """`width` is that of the inputs."""
        super().__init__()
        sizes = (width, *config.hidden_sizes)
        layers = (linear(*pair, gain=2**0.5) for pair in itertools.pairwise(sizes))
        self.layers = nn.ModuleList(nn.Sequential(layer, ACTIVATIONS[config.activation]()) for layer in layers)
        self.norms = nn.ModuleList(BatchRenorm(1, size) for size in sizes)

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """Features `[B, F]` of `inputs` `[B, width]`; `mask` `[B]` as in `BatchRenorm`."""
        first, *others = self.norms
        x: Tensor = first(inputs, mask)
        for layer, norm in zip(self.layers, others, strict=True):
            x = norm(layer(x), mask)
        return x
