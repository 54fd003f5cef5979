"""Environment wrappers, for `environment.wrappers` as `apex_acer.wrappers:<name>`."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any, TypeGuard

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from gymnasium.wrappers import TransformObservation

from apex_acer.config import ConfigError, require
from apex_acer.environments.check import BINNED
from apex_acer.environments.rendering import as_frame
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


LUMA = np.array([299.0, 587.0, 114.0])  # thousandths of red, green and blue in grey (ITU-R BT.601)


def pixels(env: Environment, size: int = 84) -> Environment:
    """Replaces observations by grey pictures of the environment, `[size, size]` uint8; proportions are not kept.

    The environment needs `render_mode="rgb_array"` (`environment.kwargs`). As one picture shows no velocity, stack several
    (`environment.stack`).

    Raises:
        ConfigError: if the environment cannot draw, has another render mode, or draws something else than uint8 pictures.
    """
    name = env.spec.id if env.spec else type(env.unwrapped).__name__
    modes = env.metadata.get("render_modes") or ()
    require(
        "rgb_array" in modes, "environment.id", name, "pixels needs pictures, and it draws none (render_mode rgb_array)"
    )
    how = 'pixels needs rgb_array; give --environment.kwargs \'{"render_mode": "rgb_array"}\''
    require(env.render_mode == "rgb_array", "environment.kwargs", f"render_mode {env.render_mode}", how)
    space = Box(0, 255, (size, size), np.uint8)
    return TransformObservation(env, lambda _: shrink(as_frame(name, _picture(env)), size), space)


def _picture(env: Environment) -> Any:
    """What `env` draws, without a display if there is none: pygame would look for one, and print an error."""
    if sys.platform.startswith("linux") and not any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY"))):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # here, because `play` has looked for a display by then
    return env.render()


def shrink(frame: Array, size: int) -> Array:
    """The frame `[H, W, 3]` uint8 in grey, `[size, size]` uint8: rounded averages of equal areas.

    Sums are of whole numbers that their types hold exactly, so the result is the same on every machine.
    """
    height, width, _ = frame.shape
    rows, row_weights = _overlaps(height, size)
    columns, column_weights = _overlaps(width, size)
    summed = np.zeros((size, width, 3), np.float32)  # up to 255 * height
    for row, weight in zip(rows, row_weights, strict=True):
        summed += frame[row] * weight[:, None, None]
    grey = summed @ LUMA  # [size, width], in float64
    total = sum(grey[:, column] * weight for column, weight in zip(columns, column_weights, strict=True))
    shrunk: Array = np.rint(total / (height * width * LUMA.sum())).astype(np.uint8)
    return shrunk


@functools.cache
def _overlaps(length: int, size: int) -> tuple[Array, Array]:
    """The pixels of `length` that each of `size` equal parts overlaps, `[n, size]`, and by how much: `[n, size]` float32.

    Overlaps are in `size`-ths of a pixel, so they are whole numbers, `length` for each part.
    """
    parts = np.arange(size)
    first = parts * length // size
    last = ((parts + 1) * length - 1) // size
    index = first + np.arange((last - first).max() + 1)[:, None]  # [n, size]
    overlaps = np.minimum((index + 1) * size, (parts + 1) * length) - np.maximum(index * size, parts * length)
    return np.minimum(index, length - 1), np.maximum(overlaps, 0).astype(np.float32)
