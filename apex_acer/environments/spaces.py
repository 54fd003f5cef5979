"""Understands an environment's spaces: which are supported, what helps with others, and where images have channels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Space

from apex_acer.config import ConfigError, EnvironmentConfig, require
from apex_acer.protocol.actions import MAX_COMBINATIONS, Actions, Box, Discrete, MultiDiscrete
from apex_acer.protocol.specification import EnvironmentSpec


def specify(config: EnvironmentConfig, actions: Space[Any], observations: Space[Any], repeat: int) -> EnvironmentSpec:
    """The specification of an environment with these spaces; raises `ConfigError` if one of them is not supported."""
    box = _require_numbers(config.id, observations)
    plane_shape, channels_last = _plane(box, config.channels)
    return EnvironmentSpec(
        plane_shape=plane_shape,
        dtype=box.dtype.name,
        actions=_actions(config.id, actions),
        stack=config.stack,
        channels_last=channels_last,
        action_repeat=repeat,
        given_shape=box.shape,
    )


def specify_remote(config: EnvironmentConfig) -> EnvironmentSpec:
    """The specification of the environments of remote clients; raises `ConfigError` if it is not supported."""
    given = config.remote
    dtype = np.dtype(given.observation_dtype).type
    observations = spaces.Box(0, 1, given.observation_shape, dtype)  # nothing depends on its bounds
    if given.num_actions:
        return specify(config, spaces.Discrete(given.num_actions), observations, 1)
    if given.num_choices:
        return specify(config, spaces.MultiDiscrete(list(given.num_choices)), observations, 1)
    low, high = (np.array(bound, np.float32) for bound in (given.action_low, given.action_high))
    return specify(config, spaces.Box(low, high), observations, 1)


def _actions(name: str, space: Space[Any]) -> Actions:
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n), int(space.start))
    if isinstance(space, (spaces.MultiDiscrete, spaces.MultiBinary)):
        return _choices(name, space)
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f" or not _is_bounded(space) or 0 in space.shape:
        supported = "supported: Discrete, MultiDiscrete, MultiBinary, and a Box of floats with finite bounds"
        hint = "give a wrapper of your own that makes it one of them, such as a gymnasium.wrappers.TransformAction"
        raise ConfigError(f"environment.id: {name!r} has action space {_line(space)}; {supported}; {hint}")
    low, high = (tuple(bound.ravel().tolist()) for bound in (space.low, space.high))
    return Box(low, high, space.shape, space.dtype.name)


def _choices(name: str, space: spaces.MultiDiscrete | spaces.MultiBinary) -> MultiDiscrete:
    allowed = f"{name} has action space {_line(space)}; at most 2^62 combinations of choices are supported"
    if isinstance(space, spaces.MultiBinary):
        space = spaces.MultiDiscrete(np.full(space.shape, 2), space.dtype.name)
    nvec, start = (tuple(values.ravel().tolist()) for values in (space.nvec, space.start))
    actions = MultiDiscrete(nvec, start, space.shape, space.dtype.name)
    require(bool(nvec) and actions.n <= MAX_COMBINATIONS, "environment.id", name, allowed)
    return actions


def _is_bounded(space: spaces.Box) -> bool:
    return bool(np.isfinite(space.low).all() and np.isfinite(space.high).all())  # neither infinite nor NaN


def _require_numbers(name: str, space: Space[Any]) -> spaces.Box:
    has = f"environment.id: {name!r} has observation space {_line(space)}; supported: Box of numbers"
    if isinstance(space, spaces.Box) and space.dtype is not None and space.dtype.kind in "fiub":
        if 0 in space.shape:
            raise ConfigError(f"{has}, at least one")
        return space
    hint = "give a wrapper of your own that makes it such a Box"
    if space.is_np_flattenable and not isinstance(space, spaces.Box):
        hint = "give --environment.wrappers gymnasium.wrappers:FlattenObservation"
        hint += ", which makes it one-hot" if isinstance(space, spaces.Discrete) else ""
    raise ConfigError(f"{has}; {hint}")


def _line(space: Space[Any]) -> str:
    return " ".join(str(space).split())


def _plane(space: spaces.Box, channels: str) -> tuple[tuple[int, ...], bool]:
    """The channel-first shape of one observation, and whether the environment has channels last."""
    shape = space.shape[1:] if len(space.shape) == 4 and space.shape[0] == 1 else space.shape  # ALE's stack of one
    if len(shape) == 3:
        last = channels == "last" or (channels == "auto" and _is_channels_last(shape))
        return ((shape[2], shape[0], shape[1]) if last else shape), last
    require(channels == "auto", "environment.channels", channels, f"observations {list(shape)} have no channels")
    if len(shape) == 2 and space.dtype == np.uint8:
        return (1, *shape), False
    return (math.prod(shape),), False


def _is_channels_last(shape: tuple[int, ...]) -> bool:
    """Guesses: two equal sizes are height and width; else the smaller of first and last is channels, in a tie the last."""
    first, middle, last = shape
    if (first == middle) != (middle == last):
        return first == middle
    return last <= first
