"""What ACER for discrete and for continuous actions share: the average network and the burn-in of recurrent state."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor

from apex_acer.algorithms.acer.settings import AcerBaseConfig
from apex_acer.algorithms.algorithm import Feeding
from apex_acer.algorithms.segments import Segments
from apex_acer.config import RunConfig
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import Batch


class AcerBase(Segments):
    """A network, and the average network to which the trust region keeps its policy close."""

    settings = AcerBaseConfig

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None:
        super().__init__(config, spec, device)
        self._common = settings(config)
        self.average_network = copy.deepcopy(self.network).requires_grad_(False)
        self.modules["average"] = self.average_network

    @staticmethod
    def feeding(config: RunConfig) -> Feeding:
        """Whole segments: each is trained on once as it arrives, and is worth Poisson(replay ratio) replays."""
        return Feeding(fresh=True, draw="poisson")

    def learned(self, batch: Batch) -> Tensor:
        """The mask without the burn-in of replayed segments, `[T, B]`."""
        burn_in, mask = self._common.burn_in, batch.mask
        if not (burn_in and self.network.lstm):
            return mask
        late = torch.arange(len(mask), device=mask.device) >= burn_in
        return mask & (late.unsqueeze(-1) | batch.fresh)

    def after_step(self, metrics: Mapping[str, Tensor], updates: int) -> None:
        """Moves the average network: θ_a ← α θ_a + (1 − α) θ; its buffers are copied."""
        with torch.no_grad():
            average: list[Tensor] = list(self.average_network.parameters())
            newest: list[Tensor] = list(self.network.parameters())
            torch._foreach_lerp_(average, newest, 1 - self._common.ema_decay)
            for old, new in zip(self.average_network.buffers(), self.network.buffers(), strict=True):
                old.copy_(new)


def settings(config: RunConfig) -> AcerBaseConfig:
    """The `[algorithm]` section of a run of ACER."""
    assert isinstance(config.algorithm, AcerBaseConfig)
    return config.algorithm
