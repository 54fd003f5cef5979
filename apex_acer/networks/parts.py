"""Observations with parts: their packed bytes become tensors, which have a normaliser and a torso each."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from apex_acer.networks.normalisation import ObservationNormaliser
from apex_acer.protocol.specification import EnvironmentSpec


def unpack(obs: Tensor, spec: EnvironmentSpec) -> dict[str, Tensor]:
    """The parts `[B, *obs_shape]` of packed observations `[B, S * num_bytes]` uint8, each of its own shape and type."""
    planes = obs.reshape(len(obs), spec.stack, spec.num_bytes)
    sizes = [box.num_bytes for box in spec.boxes.values()]
    # a copy begins at an address that suits its type, which a part in the middle of a row need not do
    rows = (row.clone(memory_format=torch.contiguous_format) for row in torch.split(planes, sizes, -1))
    pairs = zip(spec.boxes.items(), rows, strict=True)
    return {name: row.view(getattr(torch, box.dtype)).view(len(obs), *box.obs_shape) for (name, box), row in pairs}


class PartsNormaliser(nn.Module):
    """An `ObservationNormaliser` for each part that a torso sees."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        super().__init__()
        self._spec = dataclasses.replace(spec, stack=1)
        self.parts = nn.ModuleList(ObservationNormaliser(box) for box in spec.seen.values())

    def forward(self, parts: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
        """Normalises raw parts `[B, *obs_shape]`; the results have the same shapes and `dtype`."""
        return [normaliser(part, dtype) for normaliser, part in zip(self.parts, parts, strict=True)]

    def observe(self, planes: Tensor) -> None:
        """Takes the packed planes of an unroll `[L, N, num_bytes]`."""
        parts = unpack(planes.flatten(0, 1), self._spec)
        for normaliser, name in zip(self.parts, self._spec.seen, strict=True):
            assert isinstance(normaliser, ObservationNormaliser)
            normaliser.observe(parts[name].view(*planes.shape[:2], *parts[name].shape[1:]))


class PartsTorso(nn.Module):
    """One torso for each part, and `hidden` layers on their features side by side."""

    def __init__(self, boxes: Sequence[EnvironmentSpec], torsos: Sequence[nn.Module], hidden: nn.Module) -> None:
        super().__init__()
        self._shapes = [box.obs_shape for box in boxes]
        self.torsos, self.hidden = nn.ModuleList(torsos), hidden

    def forward(self, inputs: Tensor) -> Tensor:
        """Features `[B, F]` of prepared parts `[B, D]`, flat and side by side; what follows them is not seen."""
        sizes = [math.prod(shape) for shape in self._shapes]
        parts = torch.split(inputs[:, : sum(sizes)], sizes, -1)
        shaped = (part.reshape(inputs.shape[0], *shape) for part, shape in zip(parts, self._shapes, strict=True))
        features = [torso(part) for torso, part in zip(self.torsos, shaped, strict=True)]
        joined: Tensor = self.hidden(torch.cat(features, -1))
        return joined
