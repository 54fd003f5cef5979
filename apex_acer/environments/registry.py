"""Finds an environment in gymnasium's registry, and says what is wrong with an id that is not there."""

from __future__ import annotations

import difflib
import importlib
import re
import sys
from collections.abc import Collection

import gymnasium
from gymnasium.envs.registration import EnvSpec

from apex_acer.config import ConfigError, EnvironmentConfig, imports

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
