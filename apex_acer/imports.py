"""What a user has written and names as `module:name`: environments, torsos, optimizers; and what is not installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

from apex_acer.config import ConfigError

T = TypeVar("T")


def load(key: str, name: str) -> Callable[..., Any]:
    """The function or class `module:name`; `key` is what names it in the `ConfigError` where there is none."""
    module, _, attribute = name.partition(":")
    found = getattr(import_module(key, name, module), attribute, None)
    if not callable(found):
        raise ConfigError(f"{key}: {name!r} is no function of the module; give module:function")
    return found  # type: ignore[no-any-return]


def import_module(key: str, value: str, module: str) -> ModuleType:
    """The module that the `value` of `key` names; raises `ConfigError` where it cannot be imported."""
    try:
        return importlib.import_module(module)
    except Exception as error:  # whatever a user's module raises is the user's to mend
        reason = f"{type(error).__name__}: {_line(error)}"
        raise ConfigError(f"{key}: {value!r} cannot be imported ({reason}); give an importable module") from error


def attempt(key: str, value: str, make: Callable[[], T]) -> T:
    """What `make` makes of the `value` of `key`; raises `ConfigError` where a user's code raises anything."""
    try:
        return make()
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{key}: {value!r} could not be made; {type(error).__name__}: {_line(error)}") from error


def missing(asked_by: str, extra: str, error: ModuleNotFoundError) -> ConfigError:
    """What to say where a package of the optional `extra` is not installed; `asked_by` is a verb or a key."""
    how = f"pip install 'apex-acer[{extra}]', or in a checkout pip install -e '.[{extra}]'"
    return ConfigError(f"{asked_by}: {error.name} is not installed; {how}")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
