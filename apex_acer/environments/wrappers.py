"""Wrappers of environments, which `environment.wrappers` names as `apex_acer.wrappers:<name>`."""

from __future__ import annotations

from typing import Any, TypeGuard

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from gymnasium.wrappers import TransformObservation

from apex_acer.config import ConfigError
from apex_acer.environments.check import BINNED
from apex_acer.protocol.specification import Array

Environment = gymnasium.Env[Any, Any]


def hide_velocities(env: Environment) -> Environment:
    """CartPole's position and angle without their velocities, a task that needs memory.

    Hausknecht & Stone (2015) let Atari's screen flicker to the same end.
    """
    space, kept = env.observation_space, [0, 2]
    assert isinstance(space, Box)
    kept_space = Box(space.low[kept], space.high[kept], dtype=np.float32)
    return TransformObservation(env, lambda observation: observation[kept], kept_space)


class RepeatActions(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Repeats each action `times` times, or until the episode ends; adds up the rewards, so that returns do not change."""

    def __init__(self, env: Environment, times: int) -> None:
        super().__init__(env)
        self._times = times

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        total = 0.0
        for _ in range(self._times):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info


def repeat_2(env: Environment) -> Environment:
    """Repeats every action twice, with which random play gets somewhere in Acrobot."""
    return RepeatActions(env, 2)


def repeat_8(env: Environment) -> Environment:
    """Repeats every action eight times, for MountainCar."""
    return RepeatActions(env, 8)


class DiscreteActions(gymnasium.ActionWrapper[Any, Any, Any]):
    """Offers one to three continuous actions as one discrete action: each takes one of `bins` evenly spaced values.

    There are `bins ** dimensions` actions. The digits of an action in base `bins` select the values, the first digit that of
    the first dimension; they go from the dimension's low, digit 0, to its high, both included.

    Raises:
        ConfigError: if `bins` is below 2, or the action space is not a Box of one to three floats with finite bounds.
    """

    def __init__(self, env: Environment, bins: int = 5) -> None:
        super().__init__(env)
        if bins < 2:
            raise ConfigError(f"environment.wrappers: DiscreteActions has bins = {bins}; give 2 or more")
        space = env.action_space
        if not is_finite_box(space):
            has = f"DiscreteActions got action space {' '.join(str(space).split())}"
            supported = "Box of one to three floats with finite bounds"
            raise ConfigError(f"environment.wrappers: {has}; supported: {supported}")
        self._values = np.linspace(space.low, space.high, bins, dtype=space.dtype)  # [bins, D]
        self._shape = (bins,) * len(space.low)
        self.action_space = Discrete(bins ** len(space.low))

    def action(self, action: Any) -> Array:
        """The values `[D]` that `action` stands for."""
        digits = np.unravel_index(action, self._shape)
        return self._values[digits, range(len(digits))]


def is_finite_box(space: Space[Any]) -> TypeGuard[Box]:
    """Whether `DiscreteActions` takes the action space `space`."""
    return (
        isinstance(space, Box)
        and space.shape in BINNED
        and np.issubdtype(space.dtype, np.floating)
        and space.is_bounded()
    )
