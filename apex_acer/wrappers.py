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


class RepeatActions(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Takes every action `times` times, or until the episode ends; rewards add up, so that returns stay what they are."""

    def __init__(self, env: Environment, times: int) -> None:
        super().__init__(env)
        self._times = times

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The last observation and the sum of the rewards."""
        total = 0.0
        for _ in range(self._times):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info


def repeat_2(env: Environment) -> Environment:
    """Every action twice: random play then gets somewhere in Acrobot."""
    return RepeatActions(env, 2)


def repeat_8(env: Environment) -> Environment:
    """Every action eight times, for MountainCar."""
    return RepeatActions(env, 8)
