"""Understands an environment's spaces: which are supported, what helps with others, and where images have channels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, Space

from apex_acer.config import ConfigError, EnvironmentConfig, require
from apex_acer.environments.wrappers import is_finite_box
from apex_acer.protocol.specification import EnvironmentSpec


def specify(config: EnvironmentConfig, actions: Space[Any], observations: Space[Any], repeat: int) -> EnvironmentSpec:
    """The specification of an environment with these spaces; raises `ConfigError` if one of them is not supported."""
    discrete, box = _require_discrete(config.id, actions), _require_numbers(config.id, observations)
    plane_shape, channels_last = _plane(box, config.channels)
    return EnvironmentSpec(
        plane_shape=plane_shape,
        dtype=box.dtype.name,
        num_actions=int(discrete.n),
        first_action=int(discrete.start),
        stack=config.stack,
        channels_last=channels_last,
        action_repeat=repeat,
        given_shape=box.shape,
    )


def _require_discrete(name: str, space: Space[Any]) -> Discrete:
    if isinstance(space, Discrete):
        return space
    hint = "give a wrapper of your own that makes it Discrete"
    if is_finite_box(space):
        hint = "give --environment.wrappers apex_acer.wrappers:DiscreteActions"
    raise ConfigError(f"environment.id: {name!r} has action space {_line(space)}; supported: Discrete; {hint}")


def _require_numbers(name: str, space: Space[Any]) -> Box:
    has = f"environment.id: {name!r} has observation space {_line(space)}; supported: Box of numbers"
    if isinstance(space, Box) and space.dtype is not None and space.dtype.kind in "fiub":
        if 0 in space.shape:
            raise ConfigError(f"{has}, at least one")
        return space
    hint = "give a wrapper of your own that makes it such a Box"
    if space.is_np_flattenable and not isinstance(space, Box):
        hint = "give --environment.wrappers gymnasium.wrappers:FlattenObservation"
        hint += ", which makes it one-hot" if isinstance(space, Discrete) else ""
    raise ConfigError(f"{has}; {hint}")


def _line(space: Space[Any]) -> str:
    return " ".join(str(space).split())


def _plane(space: Box, channels: str) -> tuple[tuple[int, ...], bool]:
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
