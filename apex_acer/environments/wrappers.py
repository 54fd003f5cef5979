"""Wrappers of environments, to be named in `environment.wrappers` as `apex_acer.wrappers:<function>`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, Space

from apex_acer.config import ConfigError
from apex_acer.protocol.unroll import Array

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


class DiscreteActions(gymnasium.ActionWrapper[Any, Any, Any]):
    """One to three continuous actions as one discrete action: each takes one of `bins` evenly spaced values.

    Action i, written in base `bins` with a digit per dimension, says which; the first dimension's digit leads. A
    dimension's values go from its low, digit 0, to its high, both included. There are `bins ** dimensions` actions.

    Raises:
        ConfigError: where `bins` is below 2, or the action space is no Box of one to three floats with finite bounds.
    """

    def __init__(self, env: Environment, bins: int = 5) -> None:
        super().__init__(env)
        if bins < 2:
            raise ConfigError(f"environment.wrappers: DiscreteActions has bins = {bins}; give 2 or more")
        space = _finite_box(env.action_space)
        self._values = np.linspace(space.low, space.high, bins, dtype=space.dtype)  # [bins, D]
        self._shape = (bins,) * len(space.low)
        self.action_space = Discrete(bins ** len(space.low))

    def action(self, action: Any) -> Array:
        """The values `[D]` that `action` stands for."""
        digits = np.unravel_index(action, self._shape)
        return self._values[digits, range(len(digits))]


def is_finite_box(space: Space[Any]) -> bool:
    """Whether `DiscreteActions` takes the action space `space`."""
    return (
        isinstance(space, Box)
        and space.shape in ((1,), (2,), (3,))
        and np.issubdtype(space.dtype, np.floating)
        and space.is_bounded()
    )


def _finite_box(space: Space[Any]) -> Box:
    """`space`, if it is a Box of one to three floats with finite bounds; else raises `ConfigError`."""
    if isinstance(space, Box) and is_finite_box(space):
        return space
    given = " ".join(str(space).split())
    supported = "Box of one to three floats with finite bounds"
    raise ConfigError(f"environment.wrappers: DiscreteActions got action space {given}; supported: {supported}")
