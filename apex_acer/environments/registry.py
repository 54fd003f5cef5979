"""Finds an environment in gymnasium's registry, with hints for an id that is not there, and makes vectors of it."""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import inspect
import logging
import re
import sys
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from apex_acer.config import ConfigError, EnvironmentConfig, require
from apex_acer.environments.agents import AgentsVector
from apex_acer.environments.turns import TurnsVector, takes_turns
from apex_acer.protocol.specification import MASK
from apex_acer.system import imports

log = logging.getLogger(__name__)

MINIGRID = "give minigrid:{} (pip install minigrid)"
ROBOTICS = "give gymnasium_robotics:{} (pip install gymnasium-robotics)"
MINATAR = "have my_module.py call register_envs of minatar.gym (pip install minatar), and give my_module:{}"
FAMILIES = {
    ("MiniGrid-", "BabyAI-"): MINIGRID,
    ("Fetch", "HandReach", "HandManipulate", "AdroitHand", "FrankaKitchen", "AntMaze", "PointMaze"): ROBOTICS,
    ("MinAtar/",): MINATAR,
}
"""Hints for ids that begin with one of these words and are not registered."""
EVERYWHERE = ("gymnasium", "ale_py")  # packages whose ids every process knows
MOST_IDS = 5  # that a message names
MOST_FRAMES = "max_num_frames_per_episode"
# ALE's keywords that the rest of the program relies on
RESERVED = {"autoreset_mode", "batch_size", "episodic_life", "game", "num_envs"}


def find_spec(config: EnvironmentConfig) -> EnvSpec:
    """Gymnasium's registry entry for `config.id`; raises `ConfigError` if there is none."""
    if config.is_atari:
        importlib.import_module("ale_py")  # registers the games
    module, _, name = config.id.rpartition(":")
    before = set(gymnasium.registry)
    if module:
        imports.import_module("environment.id", config.id, module)
    try:
        return gymnasium.spec(name)
    except gymnasium.error.Error as error:
        added = gymnasium.registry.keys() - before
        hint = _hint_of_module(module, name, added) if module else _hint(name, " ".join(str(error).split()))
        raise ConfigError(f"environment.id: {config.id!r} is not registered; {hint}") from None


def find_function(config: EnvironmentConfig, count: int = 1) -> Callable[[], Any] | None:
    """A function that makes a game or a vector of `count` environments, with its wrappers, if the id is `module:function`.

    A function of vectors has a parameter `num_envs`.
    """
    module, _, name = config.id.rpartition(":")
    function = getattr(imports.import_module("environment.id", config.id, module), name, None) if module else None
    is_class_of_one = isinstance(function, type) and issubclass(function, gymnasium.Env)
    if not callable(function) or is_class_of_one or name in gymnasium.registry:
        return None
    wrappers = [imports.load("environment.wrappers", wrapper) for wrapper in config.wrappers]
    kwargs = config.keyword_arguments()
    if _makes_vectors(function):
        require("num_envs" not in kwargs, "environment.kwargs", kwargs, "leave num_envs out; the run sets it")
        kwargs = {**kwargs, "num_envs": count}
    return lambda: functools.reduce(lambda env, wrapper: wrapper(env), wrappers, function(**kwargs))


def _makes_vectors(function: Callable[..., Any]) -> bool:
    with contextlib.suppress(ValueError):  # a function of C may have no signature
        return "num_envs" in inspect.signature(function).parameters
    return False


def nearest_id(name: str) -> str | None:
    """The registered id most similar to `name`; for an Atari game its `ALE/` id, not an older id of ale_py."""
    importlib.import_module("ale_py")
    known = [key for key, spec in gymnasium.registry.items() if "game" not in spec.kwargs or key.startswith("ALE/")]
    known.sort(key=lambda key: "/" not in key or key.startswith("ALE/"))  # the last of equal names wins
    keys = {_plain(key): key for key in known}
    near = difflib.get_close_matches(_plain(name), keys, n=1, cutoff=0.7)
    return keys[near[0]] if near else None


def require_everywhere(config: EnvironmentConfig) -> None:
    """Raises `ConfigError` if only this program's script registers the id, which other processes do not run."""
    module, _, name = config.id.rpartition(":")
    if module not in ("", "__main__"):  # other processes import it
        return
    home = _home(find_spec(config))
    if home.partition(".")[0] not in EVERYWHERE:
        module = "my_module" if home in ("", "__main__") else home
        how = f"register it in {module.replace('.', '/')}.py and give {module}:{name}, or engine serial"
        raise ConfigError(f"environment.id: {config.id!r} is registered in this program only, not in its actors; {how}")


def _hint(name: str, reason: str) -> str:
    """What to give instead of the id `name`, which is not registered for gymnasium's `reason`."""
    for beginnings, how in FAMILIES.items():
        if name.startswith(beginnings):
            return how.format(name)
    if near := nearest_id(name):
        return f"did you mean {near!r}?"
    return f"give module:Id with the module that registers it ({reason.partition(' Did you mean')[0]})"


def _hint_of_module(module: str, name: str, added: Collection[str]) -> str:
    """What to give instead of `module:name`; the import of `module` has `added` ids, if it was the first."""
    package = module.partition(".")[0]
    ids = [key for key, spec in gymnasium.registry.items() if key in added or _home(spec).partition(".")[0] == package]
    kind = getattr(sys.modules[module], name, None)
    if isinstance(kind, type):
        same = [key for key in ids if _is_of(gymnasium.registry[key], kind)]
        if same:
            return f"it is a class, registered as {same[0]}; give {module}:{same[0]}"
        register = f'gymnasium.register("{name}-v0", "{module}:{name}")'
        return f"it is a class; have {module} call {register} and give {module}:{name}-v0"
    if near := difflib.get_close_matches(name, ids, n=1):
        return f"did you mean {module}:{near[0]}?"
    more = f" and {len(ids) - MOST_IDS} more" if len(ids) > MOST_IDS else ""
    return f"the module registers {', '.join(ids[:MOST_IDS]) or 'no id'}{more}; {imports.origin(module)}"


def _plain(name: str) -> str:
    """An id without its namespace and its version."""
    return re.sub(r"-v\d+$|NoFrameskip", "", name.rpartition("/")[2])


def _home(spec: EnvSpec) -> str:
    """The module of the environment's class or function."""
    entry = spec.entry_point or spec.vector_entry_point
    return entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", "")


def _is_of(spec: EnvSpec, kind: type) -> bool:
    return spec.entry_point in (kind, f"{kind.__module__}:{kind.__qualname__}")


class Adapter:
    """Wraps a user's environment for the vector: reduces `info` to the mask, and arrays of one number to the number.

    gymnasium's vector merges the `info` of all copies into arrays, and fails if their types or lengths differ.
    """

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**options)
        return obs, _only_mask(info)

    def step(self, action: Any) -> tuple[Any, ...]:
        obs, *numbers, info = self.env.step(action)
        return (obs, *(np.asarray(number).item() for number in numbers), _only_mask(info))


def _only_mask(info: Mapping[str, Any]) -> dict[str, Any]:
    """The mask in `info` as a tuple, because the vector copies tuples as objects."""
    mask = info.get(MASK)
    return {} if mask is None else {MASK: mask if isinstance(mask, tuple) else (mask,)}


def make_vector(
    config: EnvironmentConfig, count: int, made: list[Any] | None = None, **options: Any
) -> VectorEnv[Any, Any, Any]:
    """`gymnasium.make_vec` of an environment other than Atari, with `options`, or games, or a user's vector.

    An environment's own vector class (CartPole has one) is used if there are no wrappers, which it does not support, and if
    it has NEXT_STEP autoreset or nothing but that class. Otherwise the vector consists of single environments, each in an
    `Adapter`, which are appended to `made` as soon as they are made. Raises `ConfigError`.
    """
    if function := find_function(config, count):
        return _with_autoreset(config, _vector_from(config.id, function, count))
    spec = find_spec(config)
    _log_warnings(spec)
    wrappers = [imports.load("environment.wrappers", name) for name in config.wrappers]
    vector = None
    if spec.vector_entry_point is not None and not wrappers and "vectorization_mode" not in options:
        vector = _make_vec(config, spec.id, count, **options)
        if spec.entry_point is not None and autoreset_mode(vector) != AutoresetMode.NEXT_STEP:
            vector.close()
            vector = None
    if vector is None:
        wrappers.append(functools.partial(_noted, [] if made is None else made))
        vector = _make_vec(config, spec.id, count, **{**options, "vectorization_mode": "sync", "wrappers": wrappers})
        if isinstance(vector, SyncVectorEnv):
            vector.envs = [Adapter(env) for env in vector.envs]  # type: ignore[misc]
    return _with_autoreset(config, vector)


def _with_autoreset(config: EnvironmentConfig, vector: VectorEnv[Any, Any, Any]) -> VectorEnv[Any, Any, Any]:
    mode = autoreset_mode(vector)
    if mode not in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
        vector.close()
        raise ConfigError(f"environment.id: {config.id!r} has autoreset mode {mode}; supported: NEXT_STEP, SAME_STEP")
    return vector


def _vector_from(name: str, make: Callable[[], Any], count: int) -> VectorEnv[Any, Any, Any]:
    """Games with `count` columns of agents who act together, or of players who take turns, or a user's vector."""
    first = [imports.attempt("environment.id", name, make)]  # the first game; there may be room for no other
    if isinstance(first[0], VectorEnv):
        vector: VectorEnv[Any, Any, Any] = first[0]
        allowed = f"it gave {vector.num_envs} environments for {count}; have it take num_envs"
        require(vector.num_envs == count, "environment.id", name, allowed)
        return vector
    kind = TurnsVector if takes_turns(first[0]) else AgentsVector
    return kind(name, lambda: first.pop() if first else make(), count)


def _noted(made: list[Any], env: Any) -> Any:
    made.append(env)
    return env


def _make_vec(config: EnvironmentConfig, name: str, count: int, **options: Any) -> VectorEnv[Any, Any, Any]:
    kwargs = config.keyword_arguments()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*missing AutoresetMode")  # a vector class without it is not used
        return imports.attempt(
            "environment.id", config.id, lambda: gymnasium.make_vec(name, count, **options, **kwargs)
        )


def autoreset_mode(vector: VectorEnv[Any, Any, Any]) -> Any:
    """What a vector says of itself; None if it says nothing."""
    return (vector.metadata or {}).get("autoreset_mode")


def make_atari_vector(
    config: EnvironmentConfig, count: int, *, training: bool = False, **changes: Any
) -> VectorEnv[Any, Any, Any]:
    """ALE's vector environment with the settings of `config` and `changes` of its keywords; raises `ConfigError`."""
    spec = find_spec(config)
    from ale_py.vector_env import AtariVectorEnv

    wrappers = list(config.wrappers)
    require(not wrappers, "environment.wrappers", wrappers, "ALE's vector environment takes no wrappers")
    require(config.channels == "auto", "environment.channels", config.channels, "ALE's are known; give auto")
    atari = config.atari
    settings: dict[str, Any] = {
        "frameskip": atari.frame_skip,
        "repeat_action_probability": atari.sticky_actions,
        "noop_max": atari.noop_max,
        "use_fire_reset": atari.fire_reset,
        "life_loss_info": atari.life_loss and training,
        "full_action_space": atari.full_action_space,
        "grayscale": atari.grayscale,
        "img_height": atari.screen_size,
        "img_width": atari.screen_size,
        "stack_num": 1,
        "reward_clipping": False,
        "num_threads": 1,
        MOST_FRAMES: spec.kwargs.get(MOST_FRAMES, 108_000),
    }
    kwargs = config.keyword_arguments()
    if unknown := {"mode", "difficulty"} & kwargs.keys():
        has = f"{min(unknown)!r} is not known to ALE's vector environment, which plays the default"
        how = "register an id of your own for ale_py.AtariEnv, with gymnasium.wrappers:AtariPreprocessing as a wrapper"
        raise ConfigError(f"environment.kwargs: {has}; {how}")
    for name in (settings.keys() | RESERVED) & kwargs.keys() - {MOST_FRAMES}:
        raise ConfigError(f"environment.kwargs: {name!r} is not allowed with ALE; give the keys of environment.atari")
    settings |= kwargs | changes
    if training:
        settings[MOST_FRAMES] = min(settings[MOST_FRAMES], atari.training_frames)
    game = spec.kwargs["game"]
    vector = imports.attempt("environment.id", config.id, lambda: AtariVectorEnv(game, count, **settings))
    return cast("VectorEnv[Any, Any, Any]", vector)


def _log_warnings(spec: EnvSpec) -> None:
    """Logs MuJoCo's warnings, if it simulates `spec`, instead of appending them to a file in the current folder."""
    if "mujoco" in str(spec.entry_point):
        with contextlib.suppress(ImportError):  # gymnasium says so when the environment is made
            import mujoco

            mujoco.set_mju_user_warning(_log_mujoco)


def _log_mujoco(text: str) -> None:
    # the models are gymnasium's, so a user cannot mend what is deprecated in them
    log.log(logging.DEBUG if "deprecated" in text else logging.WARNING, "MuJoCo: %s", text)
