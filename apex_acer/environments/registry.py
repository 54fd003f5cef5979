"""Finds an environment in gymnasium's registry and makes vectors of it; says what is wrong with an id that is not there."""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import logging
import re
import sys
import warnings
from collections.abc import Collection, Mapping
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from apex_acer.config import ConfigError, EnvironmentConfig, require
from apex_acer.protocol.specification import MASK
from apex_acer.system import imports

log = logging.getLogger(__name__)

FAMILIES = {
    ("MiniGrid-", "BabyAI-"): "give minigrid:{} (pip install minigrid)",
    (
        *("Fetch", "HandReach", "HandManipulate", "AdroitHand", "FrankaKitchen"),
        *("AntMaze", "PointMaze"),
    ): "give gymnasium_robotics:{} (pip install gymnasium-robotics)",
    ("MinAtar/",): "have my_module.py call register_envs of minatar.gym (pip install minatar), and give my_module:{}",
}
"""What to give in place of an id that begins with one of these words and is not registered."""
EVERYWHERE = ("gymnasium", "ale_py")  # packages whose ids every process knows
MOST_IDS = 5  # that a message names
MOST_FRAMES = "max_num_frames_per_episode"
RESERVED = {
    "autoreset_mode",
    "batch_size",
    "episodic_life",
    "game",
    "num_envs",
}  # the rest of the program relies on them


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


def nearest_id(name: str) -> str | None:
    """The registered id most similar to `name`; for an Atari game its `ALE/` id, not the older ones of ale_py."""
    importlib.import_module("ale_py")
    known = [key for key, spec in gymnasium.registry.items() if "game" not in spec.kwargs or key.startswith("ALE/")]
    known.sort(key=lambda key: "/" not in key or key.startswith("ALE/"))  # of one name, those without namespace last
    keys = {_plain(key): key for key in known}
    near = difflib.get_close_matches(_plain(name), keys, n=1, cutoff=0.7)
    return keys[near[0]] if near else None


def require_everywhere(config: EnvironmentConfig) -> None:
    """Raises `ConfigError` if the id is known to this program alone, because its own script registers it."""
    module, _, name = config.id.rpartition(":")
    if module not in ("", "__main__"):  # the process that tries the environment imports it
        return
    home = _home(find_spec(config))
    if home.partition(".")[0] not in EVERYWHERE:
        own = "my_module" if home in ("", "__main__") else home
        how = f"register it in {own.replace('.', '/')}.py and give {own}:{name}, or engine serial"
        raise ConfigError(f"environment.id: {config.id!r} is registered in this program only, not in its actors; {how}")


def _hint(name: str, reason: str) -> str:
    """What to give in place of a `name` that nobody has registered; `reason` is gymnasium's."""
    for beginnings, how in FAMILIES.items():
        if name.startswith(beginnings):
            return how.format(name)
    if near := nearest_id(name):
        return f"did you mean {near!r}?"
    return f"give module:Id with the module that registers it ({reason.partition(' Did you mean')[0]})"


def _hint_of_module(module: str, name: str, added: Collection[str]) -> str:
    """What to give in place of `module:name`, where `module` was imported, for the first time if that `added` ids."""
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
    """Stands between a user's environment and the vector: gives of `info` only the mask, and numbers for arrays of one.

    gymnasium's vector keeps the values in `info` of all copies in arrays, and fails where their types or lengths differ.
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
    """A mask is a tuple, of which the vector keeps the objects."""
    mask = info.get(MASK)
    return {} if mask is None else {MASK: mask if isinstance(mask, tuple) else (mask,)}


def make_vector(
    config: EnvironmentConfig, count: int, made: list[Any] | None = None, **options: Any
) -> VectorEnv[Any, Any, Any]:
    """`gymnasium.make_vec` of an environment other than Atari, with `options`; raises `ConfigError`.

    An environment's own vector class (CartPole has one) is used if its metadata promise the resets that this program needs
    and there are no wrappers, which it could not take; otherwise gymnasium's vector of single environments, each of which
    has an `Adapter` and is appended to `made` as soon as it is made.
    """
    spec = find_spec(config)
    _log_warnings(spec)
    wrappers = [imports.load("environment.wrappers", name) for name in config.wrappers]
    if spec.vector_entry_point is not None and not wrappers and "vectorization_mode" not in options:
        vector = _make_vec(config, spec.id, count, **options)
        if spec.entry_point is None or _autoreset_mode(vector) == AutoresetMode.NEXT_STEP:
            return _with_late_resets(vector, config)
        vector.close()
    noting = [*wrappers, functools.partial(_noted, [] if made is None else made)]
    vector = _make_vec(config, spec.id, count, **{**options, "vectorization_mode": "sync", "wrappers": noting})
    if isinstance(vector, SyncVectorEnv):
        vector.envs = [Adapter(env) for env in vector.envs]  # type: ignore[misc]
    return _with_late_resets(vector, config)


def _noted(made: list[Any], env: Any) -> Any:
    made.append(env)
    return env


def _with_late_resets(vector: VectorEnv[Any, Any, Any], config: EnvironmentConfig) -> VectorEnv[Any, Any, Any]:
    """`vector`, if it resets an environment on the step after its end; raises `ConfigError` otherwise."""
    mode = _autoreset_mode(vector)
    if mode != AutoresetMode.NEXT_STEP:
        vector.close()
        raise ConfigError(f"environment.id: {config.id!r} has autoreset mode {mode}; supported: NEXT_STEP")
    return vector


def _make_vec(config: EnvironmentConfig, name: str, count: int, **options: Any) -> VectorEnv[Any, Any, Any]:
    given = config.keyword_arguments()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*missing AutoresetMode")  # a vector class without it is not used
        return imports.attempt("environment.id", config.id, lambda: gymnasium.make_vec(name, count, **options, **given))


def _autoreset_mode(vector: VectorEnv[Any, Any, Any]) -> Any:
    return (vector.metadata or {}).get("autoreset_mode")


def make_atari_vector(
    config: EnvironmentConfig, count: int, *, training: bool = False, **changes: Any
) -> VectorEnv[Any, Any, Any]:
    """ALE's vector environment with the settings of `config`, but for `changes`; raises `ConfigError`."""
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
    given = config.keyword_arguments()
    if unknown := {"mode", "difficulty"} & given.keys():
        has = f"{min(unknown)!r} is not known to ALE's vector environment, which plays the default"
        how = "register an id of your own for ale_py.AtariEnv, with gymnasium.wrappers:AtariPreprocessing as a wrapper"
        raise ConfigError(f"environment.kwargs: {has}; {how}")
    for name in (settings.keys() | RESERVED) & given.keys() - {MOST_FRAMES}:
        raise ConfigError(f"environment.kwargs: {name!r} is not allowed with ALE; give the keys of environment.atari")
    settings |= given | changes
    if training:
        settings[MOST_FRAMES] = min(settings[MOST_FRAMES], atari.training_frames)
    game = spec.kwargs["game"]
    vector = imports.attempt("environment.id", config.id, lambda: AtariVectorEnv(game, count, **settings))
    return cast("VectorEnv[Any, Any, Any]", vector)


def _log_warnings(spec: EnvSpec) -> None:
    """Logs what MuJoCo warns of, if it simulates `spec`; by itself it appends that to a file in the current folder."""
    if "mujoco" in str(spec.entry_point):
        with contextlib.suppress(ImportError):  # gymnasium says so when the environment is made
            import mujoco

            mujoco.set_mju_user_warning(_log_mujoco)


def _log_mujoco(text: str) -> None:
    # the models are gymnasium's, so what is deprecated in them is nobody's concern here
    log.log(logging.DEBUG if "deprecated" in text else logging.WARNING, "MuJoCo: %s", text)
