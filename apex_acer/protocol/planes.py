"""Conversion of an environment's observations to planes, the arrays that unrolls and replay hold. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from apex_acer.protocol.specification import MASK, ONE_HOT, Array, EnvironmentSpec

OBSERVATION = "observation"  # name of an observation without parts, if a mask from `info` becomes a part beside it


def to_planes(spec: EnvironmentSpec, obs: Any, *lead: int) -> Array:
    """Converts the environment's observations `[*lead, *given_shape]` to planes `[*lead, *plane_shape]`.

    Observations with parts are a dictionary or tuple of arrays. Raises ValueError if one is not among the `choices`.
    """
    if spec.parts:
        arrays = parts_of(spec, obs)
        return pack(spec, {name: to_planes(box, arrays[name], *lead) for name, box in spec.boxes.items()}, *lead)
    if spec.choices:
        return _one_hot(spec, np.asarray(obs), *lead)
    if spec.channels_last:
        return np.moveaxis(obs.reshape(*lead, *spec.plane_shape[1:], spec.plane_shape[0]), -1, -3)
    planes: Array = obs.reshape(*lead, *spec.plane_shape)
    return planes


def parts_of(spec: EnvironmentSpec, obs: Any) -> dict[str, Array]:
    """The array of each part by name, from a possibly nested dictionary or tuple; raises ValueError."""
    return {name: np.asarray(find(obs, name)) for name in spec.boxes}


def _one_hot(spec: EnvironmentSpec, obs: Array, *lead: int) -> Array:
    chosen = obs.reshape(*lead, len(spec.choices)).astype(np.int64) - spec.first
    if problem := spec.refusal(obs):
        raise ValueError(problem)
    planes = np.zeros((*lead, *spec.plane_shape), ONE_HOT)
    np.put_along_axis(planes, chosen + np.cumsum((0, *spec.choices[:-1])), 1, -1)
    return planes


def with_mask(obs: Any, mask: Any) -> dict[str, Any]:
    """Adds `mask` to the environment's observations, as a part of its own."""
    if isinstance(obs, Mapping):
        return {**obs, MASK: mask}
    parts = {str(index): part for index, part in enumerate(obs)} if isinstance(obs, tuple) else {OBSERVATION: obs}
    return {**parts, MASK: mask}


def is_legal(mask: Any) -> Array:
    """Converts a mask of zeros and ones to bool; raises ValueError, which names the number, for any other number."""
    numbers = np.asarray(mask)
    odd = numbers[(numbers != 0) & (numbers != 1)]
    if odd.size:
        raise ValueError(f"an action mask with {odd.ravel()[0]!s}; give 0, 1, False or True for each action")
    legal: Array = numbers != 0
    return legal


def pack(spec: EnvironmentSpec, planes: Mapping[str, Array], *lead: int) -> Array:
    """Packs the planes `[*lead, *plane]` of all parts into bytes `[*lead, num_bytes]`."""
    rows = []
    for name, box in spec.boxes.items():
        plane = np.ascontiguousarray(planes[name], box.dtype)
        rows.append(plane.reshape(*lead, math.prod(box.plane_shape)).view(np.uint8))
    return np.concatenate(rows, -1)


def unpack(spec: EnvironmentSpec, planes: Array, names: Collection[str]) -> dict[str, Array]:
    """Unpacks the planes `[..., *plane]` of the parts with these `names` from bytes `[..., num_bytes]`."""
    unpacked, start = {}, 0
    for name, box in spec.boxes.items():
        if name in names:
            rows = np.ascontiguousarray(planes[..., start : start + box.num_bytes])
            unpacked[name] = rows.view(box.dtype).reshape(*planes.shape[:-1], *box.plane_shape)
        start += box.num_bytes
    return unpacked


def random_action(spec: EnvironmentSpec, rng: np.random.Generator, planes: Array) -> Array:
    """Random actions `[N, *actions.shape]`, uniform over the legal ones in the newest `planes` `[N, *plane]`."""
    legal = unpack(spec, planes, names=(MASK,))[MASK] != 0 if spec.has_masks else None
    return spec.actions.sample(rng, len(planes), legal=legal)


def find(obs: Any, name: str) -> Any:
    """The part `name` of an observation, a possibly nested dictionary or tuple; raises ValueError if there is none."""
    if isinstance(obs, Mapping) and name in obs:  # also a nested part by its whole name
        return obs[name]
    try:
        for key in name.split(".") if name else ():
            obs = obs[key] if isinstance(obs, Mapping) else obs[int(key)]
    except (LookupError, TypeError, ValueError):
        raise ValueError(f"an observation without the part {name!r}") from None
    return obs
