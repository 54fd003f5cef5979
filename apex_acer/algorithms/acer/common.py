"""The learning half that ACER for discrete and for continuous actions share: the average network and the burn-in."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from apex_acer.algorithms.acer.settings import AcerBaseConfig
from apex_acer.algorithms.algorithm import Agent, Algorithm
from apex_acer.algorithms.samples import Sequences
from apex_acer.networks.network import RecurrentNetwork
from apex_acer.networks.stochastic_dueling import StochasticDueling


class AcerBase(Algorithm):
    """A network, and the average network to which the trust region keeps its policy close."""

    settings: AcerBaseConfig
    network: RecurrentNetwork[Any] | StochasticDueling

    def __init__(self, agent: Agent, device: torch.device) -> None:
        super().__init__(agent, device)
        self.average_network = copy.deepcopy(self.network).requires_grad_(False)
        self.modules["average"] = self.average_network

    def learned(self, samples: Sequences) -> Tensor:
        """The mask without the burn-in of replayed sequences, `[T, B]`."""
        burn_in, mask = self.settings.burn_in, samples.mask
        if not (burn_in and self.network.lstm):
            return mask
        late = torch.arange(len(mask), device=mask.device) >= burn_in
        return mask & (late.unsqueeze(-1) | samples.fresh)

    def after_step(self, updates: int, stepped: Collection[str]) -> None:
        """Moves the average network: θ_a ← α θ_a + (1 − α) θ; its buffers are copied."""
        with torch.no_grad():
            average: list[Tensor] = list(self.average_network.parameters())
            newest: list[Tensor] = list(self.network.parameters())
            torch._foreach_lerp_(average, newest, 1 - self.settings.ema_decay)
            for old, new in zip(self.average_network.buffers(), self.network.buffers(), strict=True):
                old.copy_(new)
