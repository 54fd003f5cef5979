"""Inspects the values that a single environment returns while it is tried, and finds a mistake's place in the user's code.

gymnasium's own checker warns of much that works, misses some mistakes, and names no place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Space
from gymnasium.vector import SyncVectorEnv

from apex_acer.environments.spaces import leaves
from apex_acer.protocol.planes import find
from apex_acer.protocol.specification import Array, unusable
from apex_acer.system import imports

T = TypeVar("T")

ALONE = "if only one can live at a time, give --actors 1 --actors.environments 1 --evaluation.every 0"
RETURNS = {
    "reset": "reset(*, seed=None, options=None) must return (observation, info)",
    "step": "step(action) must return (observation, reward, terminated, truncated, info)",
}


class Fault(Exception):
    """A mistake in a `method` of a user's environment, at `place` in its code; empty: unknown."""

    def __init__(self, method: str, what: str, place: str = "", *, called_wrongly: bool = False) -> None:
        super().__init__(what)
        self.method, self.place = method, place
        self.hint = f"; {RETURNS[method]}" if called_wrongly else ""


def inspect(vector: Any) -> list[Inspector]:
    """Wraps each single environment, inside its adapter, in an inspector."""
    if not isinstance(vector, SyncVectorEnv):
        return []
    for index, adapter in enumerate(vector.envs):
        if not isinstance(adapter.env, Inspector):  # type: ignore[attr-defined]
            adapter.env = Inspector(adapter.env, index)  # type: ignore[attr-defined]
    return [adapter.env for adapter in vector.envs]  # type: ignore[attr-defined]


class Inspector:
    """Wraps the single environment `index` of a vector, and raises `Fault` if it returns values that cannot be used."""

    def __init__(self, env: gymnasium.Env[Any, Any], index: int) -> None:
        self._env, self._index = env, index

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self, **options: Any) -> tuple[Any, Any]:
        obs, info = _several("reset", 2, self._attempt("reset", lambda: self._env.reset(**options)))
        self._check("reset", obs, info)
        return obs, info

    def step(self, action: Any) -> tuple[Any, ...]:
        result = _several("step", 5, self._attempt("step", lambda: self._env.step(action)))
        obs, reward, terminated, truncated, info = result
        self._check("step", obs, info)
        if problem := _unusable_reward(reward):
            raise Fault("step", f"step gave the reward {problem}")
        for name, value in (("terminated", terminated), ("truncated", truncated)):
            if value is not None and (np.asarray(value).dtype.kind not in "biuf" or np.size(value) != 1):
                raise Fault("step", f"step gave {name} = {_short(value)}, not True or False")
        return tuple(result)

    def _attempt(self, method: str, call: Callable[[], T]) -> T:
        try:
            return attempt(method, call)
        except Fault as fault:
            fault.hint += f"; {ALONE}" if self._index else ""  # the first one did not raise
            raise

    def _check(self, method: str, obs: Any, info: Any) -> None:
        if what := attempt(method, lambda: _misfit(self._env.observation_space, obs)):
            raise Fault(method, f"{method} gave an observation{what}")
        if not isinstance(info, Mapping):
            raise Fault(method, f"{method} gave info = {_short(info)}, not a dictionary")


def _misfit(space: Space[Any], obs: Any) -> str:
    """Why an observation is not in the space; another precision and numbers beyond a Box's bounds are allowed."""
    for name, leaf in leaves("", space).items():
        try:
            array = np.asarray(find(obs, name))
        except ValueError as error:
            return f" that cannot be used: {error}"
        assert leaf.shape is not None
        assert leaf.dtype is not None
        of = f" of {name}" if name else ""
        if what := _array_misfit(array, leaf.shape, leaf.dtype):
            return f"{of}{what}"
        if not isinstance(leaf, Box) and not leaf.contains(array.astype(leaf.dtype)[()]):
            return f"{of} that is {_short(array.tolist())}, its observation_space is {_short(leaf)}"
    return ""


def _array_misfit(obs: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
    if obs.shape != shape:
        return f" of shape {list(obs.shape)}, its observation_space has {list(shape)}"
    if not np.can_cast(obs.dtype, dtype, "same_kind"):
        return f" of type {obs.dtype}, its observation_space has {dtype}"
    problem = unusable(obs) if obs.dtype.kind == "f" else ""
    return problem and f" with {problem}"


def _several(method: str, count: int, result: Any) -> Any:
    if isinstance(result, tuple | list) and len(result) == count:
        return result
    what = f"{len(result)} values" if isinstance(result, tuple | list) else _short(result)
    raise Fault(method, f"{method} returned {what}", called_wrongly=True)


def _unusable_reward(value: Any) -> str:
    with contextlib.suppress(TypeError, ValueError):
        if value is not None and (array := np.asarray(value, np.float64)).size == 1:
            return unusable(array)
    return f"{_short(value)}, not a number"


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:60]}…"


def attempt(method: str, call: Callable[[], T]) -> T:
    """The result of `call`; an exception in the user's code, even SystemExit, becomes a `Fault`."""
    try:
        return call()
    except Fault:
        raise
    except (Exception, SystemExit) as error:
        what = f"{method} raised {type(error).__name__}: {' '.join(str(error).split())}"
        place = imports.place(error)
        raise Fault(method, what, place, called_wrongly=not place) from error


def definitions(env: Any, method: str) -> str:
    """The places where a user's environment and wrappers define `method`, or a wrapper's `observation` or `reward`."""
    places = []
    while env is not None:
        names = (method, "observation", "reward") if hasattr(env, "env") else (method,)
        functions = (getattr(type(env), name, None) for name in names)
        places += [place for function in functions if (place := imports.definition(function))][:1]
        env = getattr(env, "env", None)
    return " or ".join(reversed(places))
