"""Normalisation of observations and rewards by running statistics, which the learner updates and saves as buffers."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor, nn

from apex_acer.networks.frames import unpack
from apex_acer.protocol.specification import EnvironmentSpec

MAX_DEVIATION = 10.0  # standard deviations; normalised vectors are clipped there
MIN_VARIANCE = 1e-8
LEAST_SHARE = 0.1  # of the mean return: the least scale of rewards


class RunningMoments(nn.Module):
    """The running mean and variance of each element, by the parallel update of Chan et al. 1979.

    They are float64: in float32 a mean of 1e4 would stand still after a million values.
    """

    count: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(shape, dtype=torch.float64))

    def update(self, values: Tensor) -> None:
        """Adds `values` `[n, *shape]`; n may be 0. An update that is not finite changes nothing."""
        new = len(values)
        if not new:
            return
        values = values.to(self.mean)
        total = self.count + new
        share = new / total
        delta = values.mean(0) - self.mean
        mean = self.mean + delta * share
        variance = self.variance.lerp(values.var(0, correction=0), share) + delta.square() * share * (1 - share)
        if mean.isfinite().all() and variance.isfinite().all():
            self.mean.copy_(mean)
            self.variance.copy_(variance)
            self.count.copy_(total)


class ObservationNormaliser(nn.Module):
    """Centres each element in float64 and scales it by its standard deviation.

    The pixels of an image share one scale, because a pixel that hardly ever changes would be exaggerated by its own.
    """

    def __init__(self, spec: EnvironmentSpec) -> None:
        super().__init__()
        self._is_image, self._stack = spec.is_image, spec.stack
        self.moments = RunningMoments(*spec.plane_shape)
        if spec.dtype == "uint8":
            self.moments.variance.fill_(255.0**2)  # scales bytes to 0..1 until there are statistics

    def forward(self, obs: Tensor, dtype: torch.dtype) -> Tensor:
        """Raw observations `[B, *obs_shape]` normalised, in `dtype`."""
        mean = self.moments.mean
        if self._is_image:
            mean = mean.repeat(self._stack, 1, 1).unsqueeze(0).to(memory_format=torch.channels_last)
            scale = self._scale(self.moments.variance.mean())
            if obs.is_floating_point():
                return ((obs - mean) * scale).to(dtype)
            prepared = obs.to(dtype, copy=True)  # bytes lose nothing, and most time is spent here
            return torch.addcmul((-mean * scale).to(dtype), prepared, scale.to(dtype), out=prepared)
        scale = self._scale(self.moments.variance)
        if self._stack > 1:
            mean, scale = mean.repeat(self._stack), scale.repeat(self._stack)
        return ((obs - mean) * scale).to(dtype).clamp_(-MAX_DEVIATION, MAX_DEVIATION)

    @staticmethod
    def _scale(variance: Tensor) -> Tensor:
        return variance.clamp(min=MIN_VARIANCE).rsqrt()

    def observe(self, planes: Tensor) -> None:
        """Adds raw planes of consecutive steps `[L, N, *plane]`; of images the last, because neighbours hardly differ."""
        self.moments.update(planes[-1] if self._is_image else planes.flatten(0, 1))


class PartsNormaliser(nn.Module):
    """An `ObservationNormaliser` for each part that a torso sees."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        super().__init__()
        self._spec = dataclasses.replace(spec, stack=1)
        self.parts = nn.ModuleList(ObservationNormaliser(box) for box in spec.seen.values())

    def forward(self, parts: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
        """Raw parts `[B, *obs_shape]` normalised, in `dtype`."""
        return [normaliser(part, dtype) for normaliser, part in zip(self.parts, parts, strict=True)]

    def observe(self, planes: Tensor) -> None:
        """Adds packed planes of consecutive steps `[L, N, num_bytes]`."""
        parts = unpack(planes.flatten(0, 1), self._spec)
        for normaliser, name in zip(self.parts, self._spec.seen, strict=True):
            assert isinstance(normaliser, ObservationNormaliser)
            normaliser.observe(parts[name].view(*planes.shape[:2], *parts[name].shape[1:]))


class RewardScale(nn.Module):
    """Divides rewards by the running standard deviation of discounted returns."""

    def __init__(self) -> None:
        super().__init__()
        self.moments = RunningMoments()
        self._returns: dict[Hashable, Tensor] = {}

    def forward(self, reward: Tensor) -> Tensor:
        """`reward` divided by that standard deviation, or by a tenth of the mean return if that is larger.

        Otherwise rewards whose returns hardly vary would be divided by nearly 0.
        """
        least = (LEAST_SHARE * self.moments.mean).square().clamp(min=MIN_VARIANCE)
        return (reward * self.moments.variance.maximum(least).rsqrt()).to(reward.dtype)

    def observe(
        self, reward: Tensor, ended: Tensor, mask: Tensor, begins: Tensor, gamma: float, source: Hashable
    ) -> None:
        """Adds an unroll's `reward`, `ended` and `mask` `[k, N]`; it continues the last unroll of its `source`.

        `begins` `[N]` is true for environments whose first step begins an episode.
        """
        total = torch.where(begins, 0.0, self._returns.get(source, torch.zeros_like(reward[0])))
        returns = []
        for step, end in zip(reward, ended, strict=True):
            total = gamma * total + step
            returns.append(total)
            total = torch.where(end, 0.0, total)
        self._returns[source] = total
        self.moments.update(torch.stack(returns)[mask])  # an autoreset step is no return
