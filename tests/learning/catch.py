"""Catch: a ball falls down a small board of pixels, and a paddle must be under it. Learnable in seconds."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

ROWS, COLUMNS = 10, 6


class Catch(gymnasium.Env[Any, Any]):
    """Actions: left, stay, right. Reward 1 where the ball is caught, −1 where not, at the end of an episode.

    The ball is seen in the first `visible` rows only; with fewer than all the player needs a memory.
    """

    observation_space = Box(0, 255, (ROWS, COLUMNS, 1), np.uint8)
    action_space = Discrete(3)

    def __init__(self, visible: int = ROWS) -> None:
        self._visible = visible

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._row, self._ball, self._paddle = 0, int(self.np_random.integers(COLUMNS)), COLUMNS // 2
        return self._board(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._paddle = int(np.clip(self._paddle + action - 1, 0, COLUMNS - 1))
        self._row += 1
        ended = self._row == ROWS - 1
        reward = (1.0 if self._paddle == self._ball else -1.0) if ended else 0.0
        return self._board(), reward, ended, False, {}

    def _board(self) -> np.ndarray:
        board = np.zeros((ROWS, COLUMNS, 1), np.uint8)
        board[ROWS - 1, self._paddle] = 255
        if self._row < self._visible:
            board[self._row, self._ball] = 255
        return board


gymnasium.register("Catch-v0", f"{__name__}:Catch")
