"""Tries one environment before a run starts, so that a mistake in a user's own gives one clear line at once."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, NamedTuple, TypeVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Space
from gymnasium.vector import SyncVectorEnv

from apex_acer.config import ConfigError, EnvironmentConfig, RunConfig, imports, require
from apex_acer.environments.fit import require_fit
from apex_acer.environments.spaces import leaves, specify, specify_remote
from apex_acer.environments.vector import Environments, environment_spec, make_vector
from apex_acer.protocol.actions import Choices
from apex_acer.protocol.planes import find, random_action
from apex_acer.protocol.specification import MASK, Array, EnvironmentSpec, unusable

log = logging.getLogger(__name__)
T = TypeVar("T")

STEPS = 10
NOTICE_S = 5.0  # of silence before the user is told what the program waits for
DEADLINE_S = 300.0
RETURNS = {
    "reset": "reset(*, seed=None, options=None) must return (observation, info)",
    "step": "step(action) must return (observation, reward, terminated, truncated, info)",
}


class Checked(NamedTuple):
    """The result for an environment that works."""

    environment: EnvironmentConfig
    """As given, but for `action_masks`."""
    spec: EnvironmentSpec
    notes: tuple[str, ...]
    """What was understood of the environment, one line each."""


class _Expired(BaseException):
    """The deadline has passed; not an `Exception`, because an environment may catch those."""


class _Fault(Exception):
    """A mistake in a user's environment."""

    def __init__(self, method: str, what: str, place: str = "", *, called_wrongly: bool = False) -> None:
        super().__init__(what)
        self.method, self.place = method, place
        self.hint = f"; {RETURNS[method]}" if called_wrongly else ""


def check_environment(run: RunConfig) -> Checked:
    """Makes one environment as a run would, takes a few steps and closes it; an Atari environment is only made.

    Raises `ConfigError` if the run's algorithm does not fit its actions, and if it raises, hangs or returns what a run
    cannot use, with the place in the user's code.
    """
    checked = _check_remote(run) if run.environment.is_remote else _check(run.environment)
    require_fit(run.algorithm, run.environment.id, checked.spec)
    return checked


def _check_remote(run: RunConfig) -> Checked:
    """Tries the local environment, if one is named, and has it fit what clients have."""
    remote = run.environment.remote
    spec = specify_remote(run.environment)
    if remote.local:
        changes = _check(run.environment.local).spec.changes(spec)
        require(
            not changes, "environment.remote.local", remote.local, f"from clients to it, {changes}; give one like them"
        )
    return Checked(run.environment, spec, (spec.describe(),))


def _check(config: EnvironmentConfig) -> Checked:
    if config.is_atari:
        spec = environment_spec(config)
        return Checked(config, spec, (spec.describe(),))
    # standard output belongs to the program's results, so an environment prints elsewhere
    with _within_deadline(config.id), warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")  # gymnasium warns of much that works nevertheless
        vector = make_vector(config, 1)
        single = vector.envs[0] if isinstance(vector, SyncVectorEnv) else vector
        try:
            with _random_state_kept():
                checked = _try(vector, config)
        except _Fault as fault:
            place = fault.place or _definitions(single, fault.method)
            at = f", at {place}" if place else ""
            raise ConfigError(f"environment.id: {config.id!r} fails: {fault}{at}{fault.hint}") from fault
        finally:
            with contextlib.suppress(Exception):
                vector.close()
    return checked


def _try(vector: Any, config: EnvironmentConfig) -> Checked:
    """Steps as a rollout does, past the end of an episode if one comes, and resets again."""
    spec = specify(config, vector.single_action_space, vector.single_observation_space, 1)  # before anything is tried
    inspector = None
    if isinstance(vector, SyncVectorEnv):
        inspector = vector.envs[0] = _Inspector(vector.envs[0])  # type: ignore[call-overload]
    _, info = _attempt("reset", lambda: vector.reset(seed=0))
    config = dataclasses.replace(config, action_masks=MASK in info and isinstance(spec.actions, Choices))
    environments, random_numbers = Environments(vector, config), np.random.default_rng(0)
    planes = _attempt("reset", lambda: environments.reset(0))
    for _ in range(STEPS):
        action = random_action(environments.spec, random_numbers, planes)
        step = _attempt("step", functools.partial(environments.step, action))
        planes = step.obs
        for name in ("reward", "terminated", "truncated"):
            if (shape := np.shape(getattr(step, name))) != (1,):
                raise _Fault("step", f"step gave {name} of shape {list(shape)} for one environment")
    _attempt("reset", lambda: inspector.reset() if inspector else vector.reset())  # as at an episode's end
    legal = [f"info[{MASK!r}] says which actions are legal; no other is taken"] if config.action_masks else []
    return Checked(config, environments.spec, (environments.spec.describe(), *legal))


class _Inspector:
    """Replaces the single environment of a vector, and raises `_Fault` if what that returns cannot be used."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self._env = env

    def reset(self, **options: Any) -> tuple[Any, Any]:
        obs, info = _several("reset", 2, _attempt("reset", lambda: self._env.reset(**options)))
        self._check("reset", obs, info)
        return obs, info

    def step(self, action: Any) -> tuple[Any, ...]:
        result = _several("step", 5, _attempt("step", lambda: self._env.step(action)))
        obs, reward, terminated, truncated, info = result
        self._check("step", obs, info)
        if problem := _unusable_reward(reward):
            raise _Fault("step", f"step gave the reward {problem}")
        for name, value in (("terminated", terminated), ("truncated", truncated)):
            if value is not None and np.asarray(value).dtype.kind not in "biuf":
                raise _Fault("step", f"step gave {name} = {_short(value)}, not True or False")
        return tuple(result)

    def close(self) -> None:
        self._env.close()

    def _check(self, method: str, obs: Any, info: Any) -> None:
        if what := _attempt(method, lambda: _misfit(self._env.observation_space, obs)):
            raise _Fault(method, f"{method} gave an observation{what}")
        if not isinstance(info, Mapping):
            raise _Fault(method, f"{method} gave info = {_short(info)}, not a dictionary")


def _misfit(space: Space[Any], obs: Any) -> str:
    """Why an observation is not in the space. Another precision, and numbers beyond a Box's bounds, are accepted."""
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
    given = f"{len(result)} values" if isinstance(result, tuple | list) else _short(result)
    raise _Fault(method, f"{method} returned {given}", called_wrongly=True)


def _unusable_reward(value: Any) -> str:
    with contextlib.suppress(TypeError, ValueError):
        if value is not None and (array := np.asarray(value, np.float64)).size == 1:
            return unusable(array)
    return f"{_short(value)}, not a number"


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:60]}…"


def _attempt(method: str, call: Callable[[], T]) -> T:
    """The result of `call`; whatever the user's code raises, even an exit of the program, becomes a `_Fault`."""
    try:
        return call()
    except _Fault:
        raise
    except (Exception, SystemExit) as error:
        what = f"{method} raised {type(error).__name__}: {' '.join(str(error).split())}"
        place = imports.place(error)
        raise _Fault(method, what, place, called_wrongly=not place) from error


def _definitions(env: Any, method: str) -> str:
    """The places where a user's environment and wrappers define `method`, or what a wrapper has in its place."""
    found = []
    while env is not None:
        names = (method, "observation", "reward") if hasattr(env, "env") else (method,)
        functions = (getattr(type(env), name, None) for name in names)
        found += [place for function in functions if (place := imports.definition(function))][:1]
        env = getattr(env, "env", None)
    return " or ".join(reversed(found))


@contextlib.contextmanager
def _random_state_kept() -> Iterator[None]:
    """Restores the state of Python's and NumPy's global generators, from which an environment may draw."""
    states = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


@contextlib.contextmanager
def _within_deadline(name: str) -> Iterator[None]:
    """Tells the user if this takes long; after `DEADLINE_S` gives up, but only in the main thread, which gets signals."""
    notice = threading.Timer(NOTICE_S, _say_waiting, [name, threading.get_ident()])
    notice.daemon = True
    notice.start()
    try:
        with _alarm() if threading.current_thread() is threading.main_thread() else contextlib.nullcontext():
            yield
    except _Expired:
        raise ConfigError(
            f"environment.id: {name!r} did not answer within {DEADLINE_S:g} s; give one that answers"
        ) from None
    finally:
        notice.cancel()


def _say_waiting(name: str, thread: int) -> None:
    where = imports.running(sys._current_frames().get(thread))
    at = where and f", at {where}"
    log.warning("environment.id: %r has not answered for %g s%s; Ctrl-C ends this", name, NOTICE_S, at)


@contextlib.contextmanager
def _alarm() -> Iterator[None]:
    """Raises `_Expired` after `DEADLINE_S`. SIGINT would not do: a program in the background may ignore it."""

    def expire(number: int, frame: FrameType | None) -> None:
        raise _Expired

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, DEADLINE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
