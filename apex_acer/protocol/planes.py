"""Observations as an environment gives them, and as the planes that the rest of the program passes on. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from apex_acer.protocol.specification import MASK, ONE_HOT, Array, EnvironmentSpec

OBSERVATION = "observation"  # the part that is the rest of it, if the environment gives the mask beside it, in `info`


def to_planes(spec: EnvironmentSpec, obs: Any, *lead: int) -> Array:
    """The environment's observations `[*lead, *given_shape]` as planes `[*lead, *plane_shape]`.

    Observations with parts are a dictionary or tuple of arrays. Raises ValueError if one is not among the `choices`.
    """
    if spec.parts:
        given = parts_of(spec, obs)
        return pack(spec, {name: to_planes(box, given[name], *lead) for name, box in spec.boxes.items()}, *lead)
    if spec.choices:
        return _one_hot(spec, np.asarray(obs), *lead)
    if spec.channels_last:
        return np.moveaxis(obs.reshape(*lead, *spec.plane_shape[1:], spec.plane_shape[0]), -1, -3)
    planes: Array = obs.reshape(*lead, *spec.plane_shape)
    return planes


def parts_of(spec: EnvironmentSpec, obs: Any) -> dict[str, Array]:
    """The array of each part in a dictionary or tuple of them, or in several that are nested; raises ValueError."""
    return {name: np.asarray(find(obs, name)) for name in spec.boxes}


def _one_hot(spec: EnvironmentSpec, obs: Array, *lead: int) -> Array:
    chosen = obs.reshape(*lead, len(spec.choices)).astype(np.int64) - spec.first
    if problem := spec.refusal(obs):
        raise ValueError(problem)
    planes = np.zeros((*lead, *spec.plane_shape), ONE_HOT)
    np.put_along_axis(planes, chosen + np.cumsum((0, *spec.choices[:-1])), 1, -1)
    return planes


def with_mask(obs: Any, mask: Any) -> dict[str, Any]:
    """The environment's observations with the mask that it gives beside them as another part."""
    if isinstance(obs, Mapping):
        return {**obs, MASK: mask}
    parts = {str(index): part for index, part in enumerate(obs)} if isinstance(obs, tuple) else {OBSERVATION: obs}
    return {**parts, MASK: mask}


def is_legal(mask: Any) -> Array:
    """A mask of zeros and ones as bool; raises ValueError, which names the number, if there are others in it."""
    given = np.asarray(mask)
    odd = given[~((given == 0) | (given == 1))]
    if odd.size:
        raise ValueError(f"an action mask with {odd.ravel()[0]!s}; give 0, 1, False or True for each action")
    legal: Array = given != 0
    return legal


def pack(spec: EnvironmentSpec, planes: Mapping[str, Array], *lead: int) -> Array:
    """The bytes `[*lead, num_bytes]` of the parts' planes `[*lead, *plane]`."""
    rows = []
    for name, box in spec.boxes.items():
        plane = np.ascontiguousarray(planes[name], box.dtype)
        rows.append(plane.reshape(*lead, math.prod(box.plane_shape)).view(np.uint8))
    return np.concatenate(rows, -1)


def unpack(spec: EnvironmentSpec, planes: Array, names: Collection[str]) -> dict[str, Array]:
    """The planes `[..., *plane]` of the parts with these `names` in bytes `[..., num_bytes]`."""
    found, start = {}, 0
    for name, box in spec.boxes.items():
        if name in names:
            rows = np.ascontiguousarray(planes[..., start : start + box.num_bytes])
            found[name] = rows.view(box.dtype).reshape(*planes.shape[:-1], *box.plane_shape)
        start += box.num_bytes
    return found


def random_action(spec: EnvironmentSpec, rng: np.random.Generator, planes: Array) -> Array:
    """An action `[N, *actions.shape]` for each of the newest `planes`, drawn uniformly of the legal ones."""
    legal = unpack(spec, planes, names=(MASK,))[MASK] != 0 if spec.has_masks else None
    return spec.actions.sample(rng, len(planes), legal=legal)


def find(obs: Any, name: str) -> Any:
    """The part `name` of an observation, which is a dictionary or tuple, or several that are nested; raises ValueError."""
    if isinstance(obs, Mapping) and name in obs:  # nested or not, its name may be given whole
        return obs[name]
    try:
        for key in name.split(".") if name else ():
            obs = obs[key] if isinstance(obs, Mapping) else obs[int(key)]
    except (LookupError, TypeError, ValueError):
        raise ValueError(f"an observation without the part {name!r}") from None
    return obs
