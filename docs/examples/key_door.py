"""A key, a door and a goal in a small picture: one reward at the end. Importing this module registers `KeyDoor-v0`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

SIZE, WALL = 5, 2  # cells per side, and the column of the wall
MOVES = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])  # up, down, left, right
AGENT, KEY, GOAL = (255, 0, 0), (0, 255, 0), (0, 0, 255)


class KeyDoor(gymnasium.Env[Any, Any]):
    """Two rooms, of which the left one has the key; the goal in the right one pays 1 and ends the episode.

    The picture has a pixel for each cell. The agent takes the key by walking onto it, which only the missing key shows,
    and then may pass the door. Agent, key, door and goal have new places in each episode.
    """

    observation_space = Box(0, 255, (SIZE, SIZE, 3), np.uint8)
    action_space = Discrete(len(MOVES))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Places everything anew."""
        super().reset(seed=seed)
        left, right = np.arange(WALL), np.arange(WALL + 1, SIZE)
        self._agent, self._key, self._goal = (self._place(columns) for columns in (left, left, right))
        self._door = np.array([self.np_random.integers(SIZE), WALL])
        self._has_key = False
        return self._picture(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Moves the agent by a cell, unless the picture's edge, the wall or the closed door is in the way."""
        cell = np.clip(self._agent + MOVES[action], 0, SIZE - 1)
        if cell[1] != WALL or (self._has_key and (cell == self._door).all()):
            self._agent = cell
        self._has_key = self._has_key or bool((self._agent == self._key).all())
        arrived = bool((self._agent == self._goal).all())
        return self._picture(), float(arrived), arrived, False, {}

    def _place(self, columns: Any) -> Any:
        return np.array([self.np_random.integers(SIZE), self.np_random.choice(columns)])

    def _picture(self) -> Any:
        picture = np.zeros((SIZE, SIZE, 3), np.uint8)
        picture[:, WALL] = 127
        picture[tuple(self._door)] = 0 if self._has_key else (255, 255, 0)
        picture[tuple(self._goal)] = GOAL
        if not self._has_key:
            picture[tuple(self._key)] = KEY
        picture[tuple(self._agent)] = AGENT
        return picture


gymnasium.register("KeyDoor-v0", KeyDoor, max_episode_steps=60)
