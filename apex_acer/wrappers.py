"""Wrappers of environments, to be named in `environment.wrappers` as `apex_acer.wrappers:<function>`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from apex_acer.trajectory import Array

Environment = gymnasium.Env[Any, Any]


class HideVelocities(gymnasium.ObservationWrapper[Any, Any, Any]):
    """CartPole's position and angle without their velocities: one observation no longer tells the state."""

    KEPT = (0, 2)

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, Box)
        self.observation_space = Box(space.low[list(self.KEPT)], space.high[list(self.KEPT)], dtype=np.float32)

    def observation(self, observation: Array) -> Array:
        """Position and angle."""
        return observation[list(self.KEPT)]


def hide_velocities(env: Environment) -> Environment:
    """CartPole as a task that needs memory (Hausknecht & Stone 2015 flicker Atari to the same end)."""
    return HideVelocities(env)
