"""Converts gymnasium's spaces to the specification of an environment, with hints for spaces that are not supported."""

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
from apex_acer.protocol.composite import MAX_EXACT, Composite
from apex_acer.protocol.planes import OBSERVATION
from apex_acer.protocol.specification import MASK, ONE_HOT, EnvironmentSpec, Part

MANY_CHOICES = 10_000  # in an observation, above which a user is told that it is one-hot


def specify(
    config: EnvironmentConfig,
    actions: Space[Any],
    observations: Space[Any],
    repeat: int,
    *,
    masks_in_info: bool = False,
) -> EnvironmentSpec:
    """The specification of an environment with these spaces; raises `ConfigError` if one of them is not supported.

    An action mask in `info` becomes a part of the observation, as if the environment had a part of this name.
    """
    known_actions = _actions(config.id, actions)
    masks = {MASK: spaces.MultiBinary(sum(known_actions.branches))} if masks_in_info and known_actions.branches else {}
    if masks or isinstance(observations, spaces.Dict | spaces.Tuple):
        named = {name or OBSERVATION: space for name, space in leaves(config.id, observations).items()}
        spec = _packed(config, known_actions, named | masks, observations, repeat)
        return dataclasses.replace(spec, masks_in_info=bool(masks))
    fields = {**vars(_part("", config, observations, observations))}
    del fields["name"]
    return EnvironmentSpec(**fields, actions=known_actions, stack=config.stack, action_repeat=repeat)


def _packed(
    config: EnvironmentConfig, actions: Actions, named: Mapping[str, Space[Any]], whole: Space[Any], repeat: int
) -> EnvironmentSpec:
    """The specification of observations with parts, in the order of their names."""
    parts = tuple(_part(name, config, space, whole) for name, space in sorted(named.items()))
    images = any(len(part.plane_shape) == 3 for part in parts)
    allowed = "no part of the observation has channels"
    require(images or config.channels == "auto", "environment.channels", config.channels, allowed)
    spec = EnvironmentSpec.of_parts(parts, actions, config.stack, repeat)
    if spec.has_masks and spec.boxes[MASK].plane_shape != (spec.num_choices,):
        has = f"has an action mask of {math.prod(spec.boxes[MASK].plane_shape)} numbers"
        raise ConfigError(f"environment.id: {config.id!r} {has}, for {spec.num_choices} choices")
    return spec


def leaves(name: str, space: Space[Any], outer: str = "", what: str = "observation") -> dict[str, Space[Any]]:
    """The spaces in a Dict or Tuple by name; spaces in nested ones are named `outer.inner`."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return {outer: space}
    inner_spaces: dict[str, Space[Any]] = {}
    for key, inner in space.items() if isinstance(space, spaces.Dict) else enumerate(space):
        has = f"environment.id: {name!r} has an {what} with the key {key!r}"
        if isinstance(space, spaces.Dict) and not (isinstance(key, str) and key and "." not in key):
            raise ConfigError(f"{has}; give keys that are text without dots")
        if isinstance(space, spaces.Dict) and what == "action" and str(key).isdigit():
            raise ConfigError(f"{has}; give a key that is no number, as those of a Tuple are")
        inner_spaces |= leaves(name, inner, f"{outer}.{key}".removeprefix("."), what)
    if not inner_spaces:
        raise ConfigError(f"environment.id: {name!r} has {what} space {_line(space)}; give one that is not empty")
    return inner_spaces


def oddities(space: Space[Any]) -> list[str]:
    """Lines on properties of an observation space that its author may not expect."""
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
    """Number of choices of each element of a `Discrete` or `MultiDiscrete` space; empty for other spaces."""
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    return tuple(space.nvec.ravel().tolist()) if isinstance(space, spaces.MultiDiscrete) else ()


def specify_remote(config: EnvironmentConfig) -> EnvironmentSpec:
    """The specification of remote clients' environments; raises `ConfigError` if it is not supported."""
    remote = config.remote
    if parts := remote.parts():
        named = {name: _remote_space(**part) for name, part in parts.items()}
        return _packed(config, _actions(config.id, _remote_actions(remote)), named, spaces.Tuple(named.values()), 1)
    observations = _remote_space(remote.observation_shape, remote.observation_dtype)
    return specify(config, _remote_actions(remote), observations, 1, masks_in_info=bool(config.action_masks))


def _remote_space(shape: Sequence[int] = (), dtype: str = "float32", n: int = 0, start: int = 0) -> Space[Any]:
    if n:
        return spaces.Discrete(n, start=start)
    return spaces.Box(0, 1, tuple(shape), np.dtype(dtype).type)  # nothing depends on its bounds


def _remote_actions(remote: RemoteConfig) -> Space[Any]:
    if remote.num_actions:
        return spaces.Discrete(remote.num_actions)
    if remote.num_choices:
        return spaces.MultiDiscrete(list(remote.num_choices))
    low, high = (np.array(bound, np.float32) for bound in (remote.action_low, remote.action_high))
    return spaces.Box(low, high)


def _actions(name: str, space: Space[Any]) -> Actions:
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n), int(space.start))
    if isinstance(space, (spaces.MultiDiscrete, spaces.MultiBinary)):
        return _choices(name, space)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return _composite(name, space)
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f" or not space.is_bounded() or 0 in space.shape:
        supported = (
            "supported: Discrete, MultiDiscrete, MultiBinary, a Box of floats with finite bounds, and Dict and Tuple"
        )
        hint = "give a wrapper that converts it, such as gymnasium.wrappers.TransformAction"
        raise ConfigError(f"environment.id: {name!r} has action space {_line(space)}; {supported}; {hint}")
    low, high = (tuple(bound.ravel().tolist()) for bound in (space.low, space.high))
    return Box(low, high, space.shape, space.dtype.name)


def _composite(name: str, space: Space[Any]) -> Composite:
    named = leaves(name, space, what="action")
    actions = Composite(tuple(named), tuple(_actions(name, leaf) for leaf in named.values()))
    allowed = f"{name} has action space {_line(space)}; at most 2^53 combinations of choices are supported"
    require(actions.n <= MAX_EXACT, "environment.id", name, allowed)
    return actions


def _choices(name: str, space: spaces.MultiDiscrete | spaces.MultiBinary) -> MultiDiscrete:
    allowed = f"{name} has action space {_line(space)}; at most 2^62 combinations of choices are supported"
    if isinstance(space, spaces.MultiBinary):
        space = spaces.MultiDiscrete(np.full(space.shape, 2), space.dtype.name)
    nvec, start = (tuple(values.ravel().tolist()) for values in (space.nvec, space.start))
    actions = MultiDiscrete(nvec, start, space.shape, space.dtype.name)
    require(bool(nvec) and actions.n <= MAX_COMBINATIONS, "environment.id", name, allowed)
    return actions


def _part(name: str, config: EnvironmentConfig, space: Space[Any], whole: Space[Any]) -> Part:
    """The part `name` of the observations that a space describes; it is the `whole` observation space or in it."""
    supported = "supported: Box of numbers, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of them"
    has = f"environment.id: {config.id!r} has observation space {_line(whole)}; {supported}"
    if 0 in (space.shape or ()):
        raise ConfigError(f"{has}, with at least one number each")
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        choices, first = _num_choices(space), tuple(np.ravel(space.start).tolist())
        return Part(name, (sum(choices),), ONE_HOT, False, space.shape or (), choices, first)
    if isinstance(space, spaces.MultiBinary):
        return Part(name, (math.prod(space.shape),), space.dtype.name, False, space.shape)
    if not isinstance(space, spaces.Box) or space.dtype.kind not in "fiub":
        inside = "" if space is whole else f", not {_line(space)}"
        raise ConfigError(f"{has}{inside}; give a wrapper of your own that makes it one of them")
    channels = config.channels if whole is space or len(space.shape) >= 3 else "auto"
    plane_shape, channels_last = _box_plane(space, channels)
    return Part(name, plane_shape, space.dtype.name, channels_last, space.shape)


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
    """Guesses where channels are, as `environment.channels` describes for `auto`."""
    first, middle, last = shape
    if (first == middle) != (middle == last):
        return first == middle
    return last <= first
