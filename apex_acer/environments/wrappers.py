"""Environment wrappers, for `environment.wrappers` as `apex_acer.wrappers:<name>`."""

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
    """Removes the velocities from CartPole's observations, which leaves a task that needs memory.

    Hausknecht & Stone (2015) make Atari games partially observable by a flickering screen.
    """
    space, kept = env.observation_space, [0, 2]
    assert isinstance(space, Box)
    kept_space = Box(space.low[kept], space.high[kept], dtype=np.float32)
    return TransformObservation(env, lambda observation: observation[kept], kept_space)


class RepeatActions(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Repeats each action `times` times or until the episode ends; the reward of a step is the sum of their rewards."""

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
    """Repeats every action twice, so that random actions make progress in Acrobot."""
    return RepeatActions(env, 2)


def repeat_8(env: Environment) -> Environment:
    """Repeats every action eight times, for MountainCar."""
    return RepeatActions(env, 8)


class DiscreteActions(gymnasium.ActionWrapper[Any, Any, Any]):
    """Discretises one to three continuous action dimensions: each takes one of `bins` evenly spaced values.

    There are `bins ** dimensions` discrete actions. In base `bins`, an action has one digit per dimension, the first
    dimension first; digit 0 is the dimension's lower bound and digit `bins` − 1 its upper bound.

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
        """The continuous action `[D]` for the discrete `action`."""
        digits = np.unravel_index(action, self._shape)
        return self._values[digits, range(len(digits))]


def is_finite_box(space: Space[Any]) -> TypeGuard[Box]:
    """Whether `DiscreteActions` supports the action space `space`."""
    if not isinstance(space, Box) or space.shape not in BINNED:
        return False
    return np.issubdtype(space.dtype, np.floating) and space.is_bounded()
