"""Understands an environment's spaces: which are supported, what helps with others, and where images have channels."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Space

from apex_acer.config import ConfigError, EnvironmentConfig, RemoteConfig, require
from apex_acer.protocol.actions import MAX_COMBINATIONS, Actions, Box, Discrete, MultiDiscrete
from apex_acer.protocol.planes import OBSERVATION
from apex_acer.protocol.specification import MASK, ONE_HOT, EnvironmentSpec, Part

MANY_CHOICES = 10_000  # of an observation, beyond which a user is told that it is one-hot


def specify(
    config: EnvironmentConfig,
    actions: Space[Any],
    observations: Space[Any],
    repeat: int,
    *,
    masks_in_info: bool = False,
) -> EnvironmentSpec:
    """The specification of an environment with these spaces; raises `ConfigError` if one of them is not supported.

    An action mask in `info` is a part of the observation, as it is if the environment itself makes it one of that name.
    """
    taken = _actions(config.id, actions)
    masks = {MASK: spaces.MultiBinary(sum(taken.branches))} if masks_in_info and taken.branches else {}
    if masks or isinstance(observations, spaces.Dict | spaces.Tuple):
        named = {name or OBSERVATION: space for name, space in leaves(config.id, observations).items()}
        spec = _packed(config, taken, named | masks, observations, repeat)
        return dataclasses.replace(spec, masks_in_info=bool(masks))
    fields = _plane(config, observations, observations)
    return EnvironmentSpec(**fields, actions=taken, stack=config.stack, action_repeat=repeat)


def _packed(
    config: EnvironmentConfig, actions: Actions, named: Mapping[str, Space[Any]], whole: Space[Any], repeat: int
) -> EnvironmentSpec:
    """The specification of observations with parts, which are in the order of their names."""
    parts = tuple(Part(name, **_plane(config, space, whole)) for name, space in sorted(named.items()))
    images = any(len(part.plane_shape) == 3 for part in parts)
    allowed = "no part of the observation has channels"
    require(images or config.channels == "auto", "environment.channels", config.channels, allowed)
    spec = EnvironmentSpec.of_parts(parts, actions, config.stack, repeat)
    if spec.has_masks and spec.boxes[MASK].plane_shape != (spec.num_choices,):
        has = f"has an action mask of {math.prod(spec.boxes[MASK].plane_shape)} numbers"
        raise ConfigError(f"environment.id: {config.id!r} {has}, for {spec.num_choices} choices")
    return spec


def leaves(name: str, space: Space[Any], outer: str = "") -> dict[str, Space[Any]]:
    """The spaces in a Dict or Tuple by their names, those in nested ones by `outer.inner`."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return {outer: space}
    found: dict[str, Space[Any]] = {}
    for key, inner in space.items() if isinstance(space, spaces.Dict) else enumerate(space):
        has = f"environment.id: {name!r} has an observation with the key {key!r}"
        if isinstance(space, spaces.Dict) and not (isinstance(key, str) and key and "." not in key):
            raise ConfigError(f"{has}; give keys that are text without dots")
        found |= leaves(name, inner, f"{outer}.{key}".removeprefix("."))
    if not found:
        raise ConfigError(f"environment.id: {name!r} has observation space {_line(space)}; give one that is not empty")
    return found


def oddities(space: Space[Any]) -> list[str]:
    """What is understood of an observation space in a way that its author may not expect, one line each."""
    return [line for name, leaf in leaves("", space).items() if (line := _oddity(f"{name}: " if name else "", leaf))]


def _oddity(of: str, space: Space[Any]) -> str:
    if isinstance(space, spaces.Box) and len(space.shape) == 4 and space.shape[0] > 1 and space.dtype == np.uint8:
        are = f"are vectors of {math.prod(space.shape):,} numbers, not images"
        how = "for images have a wrapper give the newest [height, width, channels], and set environment.stack"
        return f"{of}observations {list(space.shape)} uint8 {are}; {how}"
    count = sum(_num_choices(space))
    one_hot = f"{of}observations of {count:,} choices are one-hot, so each has {count:,} numbers"
    return f"{one_hot}; have a wrapper give fewer numbers that say the same" if count > MANY_CHOICES else ""


def _num_choices(space: Space[Any]) -> tuple[int, ...]:
    """The number of choices of each element of a `Discrete` or `MultiDiscrete` space; empty for others."""
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    return tuple(space.nvec.ravel().tolist()) if isinstance(space, spaces.MultiDiscrete) else ()


def specify_remote(config: EnvironmentConfig) -> EnvironmentSpec:
    """The specification of the environments of remote clients; raises `ConfigError` if it is not supported."""
    given = config.remote
    if parts := given.parts():
        named = {name: _remote_space(**part) for name, part in parts.items()}
        return _packed(config, _actions(config.id, _remote_actions(given)), named, spaces.Tuple(named.values()), 1)
    observations = _remote_space(given.observation_shape, given.observation_dtype)
    return specify(config, _remote_actions(given), observations, 1, masks_in_info=bool(config.action_masks))


def _remote_space(shape: Sequence[int] = (), dtype: str = "float32", n: int = 0, start: int = 0) -> Space[Any]:
    if n:
        return spaces.Discrete(n, start=start)
    return spaces.Box(0, 1, tuple(shape), np.dtype(dtype).type)  # nothing depends on its bounds


def _remote_actions(given: RemoteConfig) -> Space[Any]:
    if given.num_actions:
        return spaces.Discrete(given.num_actions)
    if given.num_choices:
        return spaces.MultiDiscrete(list(given.num_choices))
    low, high = (np.array(bound, np.float32) for bound in (given.action_low, given.action_high))
    return spaces.Box(low, high)


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


def _plane(config: EnvironmentConfig, space: Space[Any], whole: Space[Any]) -> dict[str, Any]:
    """The fields of `Part` without its name that describe a space, which is the `whole` observation space or in it."""
    if 0 in (space.shape or ()):
        raise ConfigError(f"{_has(config.id, whole)}, with at least one number each")
    if isinstance(space, spaces.Discrete):
        return _one_hot((), _num_choices(space), (int(space.start),))
    if isinstance(space, spaces.MultiDiscrete):
        return _one_hot(space.shape, _num_choices(space), tuple(space.start.ravel().tolist()))
    if isinstance(space, spaces.MultiBinary):
        flat = {"plane_shape": (math.prod(space.shape),), "channels_last": False, "given_shape": space.shape}
        return {**flat, "dtype": space.dtype.name}
    box = _require_numbers(config.id, space, whole)
    channels = config.channels if whole is space or len(box.shape) >= 3 else "auto"
    plane_shape, channels_last = _box_plane(box, channels)
    fields = {"plane_shape": plane_shape, "channels_last": channels_last, "given_shape": box.shape}
    return {**fields, "dtype": box.dtype.name}


def _one_hot(shape: tuple[int, ...], choices: tuple[int, ...], first: tuple[int, ...]) -> dict[str, Any]:
    planes = {"plane_shape": (sum(choices),), "dtype": ONE_HOT, "channels_last": False}
    return {**planes, "given_shape": shape, "choices": choices, "first": first}


def _require_numbers(name: str, space: Space[Any], whole: Space[Any]) -> spaces.Box:
    if isinstance(space, spaces.Box) and space.dtype is not None and space.dtype.kind in "fiub":
        return space
    inside = "" if space is whole else f", not {_line(space)}"
    raise ConfigError(f"{_has(name, whole)}{inside}; give a wrapper of your own that makes it one of them")


def _has(name: str, space: Space[Any]) -> str:
    supported = "supported: Box of numbers, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of them"
    return f"environment.id: {name!r} has observation space {_line(space)}; {supported}"


def _line(space: Space[Any]) -> str:
    return " ".join(str(space).split())


def _box_plane(space: spaces.Box, channels: str) -> tuple[tuple[int, ...], bool]:
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
