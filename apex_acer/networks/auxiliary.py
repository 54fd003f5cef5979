"""Heads of UNREAL's auxiliary tasks, which stay with the learner."""

from __future__ import annotations

import math

from torch import Tensor, nn

from apex_acer.functional import dueling
from apex_acer.networks.torsos import linear

CHANNELS = 32  # of the map that is spread out over the cells
KERNEL, STRIDE = 4, 2


class PixelControl(nn.Module):
    """Q values of actions for each cell of an image, by a dueling head of transposed convolutions.

    A map of half as many places per side, less one, becomes `rows` × `columns` cells; for odd numbers the last ones are cut.
    """

    def __init__(self, width: int, num_actions: int, rows: int, columns: int) -> None:
        super().__init__()
        self._cells = rows, columns
        self._map = [max(1, math.ceil(size / STRIDE) - 1) for size in self._cells]
        self.spread = nn.Sequential(linear(width, CHANNELS * math.prod(self._map), gain=2**0.5), nn.ReLU())
        self.value = nn.ConvTranspose2d(CHANNELS, 1, KERNEL, STRIDE)
        self.advantage = nn.ConvTranspose2d(CHANNELS, num_actions, KERNEL, STRIDE)

    def forward(self, features: Tensor) -> Tensor:
        """Q values `[L, B, rows, columns, A]` from features `[L, B, width]`."""
        maps = self.spread(features).view(-1, CHANNELS, *self._map)
        rows, columns = self._cells
        value, advantage = (layer(maps)[..., :rows, :columns].movedim(1, -1) for layer in (self.value, self.advantage))
        q_values = dueling(value, advantage)
        return q_values.view(*features.shape[:2], *q_values.shape[1:])
