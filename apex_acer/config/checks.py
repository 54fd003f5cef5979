"""Checks of settings, which raise `ConfigError`, and the conversion of a user's values to the types of settings."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import numbers
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from apex_acer.system.errors import ConfigError, require

MOST_THREADS = 1024  # of one process; no machine gains from more, and a library that cannot start its threads aborts


def at_least(minimum: float, section: str, settings: Any, *names: str) -> None:
    """Requires the fields `names` of `settings`, which are keys of `section`, to be finite and at least `minimum`."""
    _require_each(section, settings, names, lambda value: value >= minimum, f"give {minimum} or more")


def positive(section: str, settings: Any, *names: str) -> None:
    """Requires the fields `names` of `settings`, which are keys of `section`, to be finite and above 0."""
    _require_each(section, settings, names, lambda value: value > 0, "give a number above 0")


def between(minimum: float, maximum: float, section: str, settings: Any, *names: str) -> None:
    """Requires the fields `names` of `settings`, keys of `section`, to be from `minimum` to `maximum`."""
    _require_each(section, settings, names, lambda value: minimum <= value <= maximum, f"give {minimum} to {maximum}")


def fraction(section: str, settings: Any, *names: str, one: bool = True) -> None:
    """Requires the fields `names` of `settings`, keys of `section`, to be from 0 to 1; below 1 unless `one`."""
    between(0, 1, section, settings, *names)
    if not one:
        _require_each(section, settings, names, lambda value: value < 1, "give 0 to 1, below 1")


def _require_each(
    section: str, settings: Any, names: Iterable[str], is_allowed: Callable[[float], bool], allowed: str
) -> None:
    for name in names:
        value = getattr(settings, name)
        finite = math.isfinite(value)
        how = allowed if finite else f"{allowed}, and finite"
        require(finite and is_allowed(value), f"{section}.{name}", value, how)


def json_object(key: str, value: object) -> dict[str, Any]:
    """The `value` of `key` as a dict: it is one, or one JSON object as text; raises `ConfigError` for anything else."""
    text = as_json(key, value) if isinstance(value, Mapping) else str(value)
    parsed: Any = None
    with contextlib.suppress(ValueError, RecursionError):  # not JSON, numbers too long, or nested too deeply
        parsed = json.loads(text)
    require(isinstance(parsed, dict), key, value, 'give one JSON object, such as {"length": 7}')
    return dict(parsed)


def as_json(key: str, values: Mapping[str, Any]) -> str:
    """The `values` of `key` as JSON; raises `ConfigError` if JSON cannot hold them."""
    text = ""
    with contextlib.suppress(TypeError, ValueError, RecursionError):
        text = json.dumps(values, allow_nan=False)
    is_plain = bool(text) and all(isinstance(name, str) for name in values)
    require(is_plain, key, dict(values), "give values that JSON has: strings, numbers, true, false, lists, tables")
    return text


def typed(section: str, settings: Any) -> None:
    """Requires each field of the dataclass `settings` to have a value that `of_type` converts to its type."""
    for name, hint in field_types(type(settings)).items():
        of_type(f"{section}.{name}".lstrip("."), hint, getattr(settings, name))


def of_type(key: str, hint: Any, value: Any) -> Any:
    """Converts the `value` of `key` to the type `hint`; raises `ConfigError` if it does not fit.

    An int fits a float, a whole float such as 1e6 an int, a list a tuple, and a dict JSON text.
    """
    if typing.get_origin(hint) is tuple:
        require(isinstance(value, list | tuple), key, value, "give a list")
        return tuple(of_type(key, typing.get_args(hint)[0], item) for item in value)
    kinds, words = _alternatives(hint)
    if isinstance(value, str) and value in words:
        return value
    if isinstance(value, Path) and str in kinds:
        return str(value)
    if isinstance(value, Mapping) and {str, dict} <= set(kinds):
        return as_json(key, value)
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if is_number and (float in kinds or (int in kinds and value % 1 == 0)):
        is_whole = int in kinds or isinstance(value, numbers.Integral)
        if is_whole and not -(2**63) <= value < 2**63:
            raise ConfigError(f"{key}: an integer beyond 64 bits is not allowed; give one of less than 2^63")
        return float(value) if float in kinds else int(value)
    fits = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
    *others, last = [*("None" if kind is type(None) else kind.__name__ for kind in kinds), *words]
    require(fits, key, value, f"give {', '.join(others)} or {last}" if others else f"give {last}")
    return value


def none_by_name(hint: Any, value: Any) -> Any:
    """`value`, or None for the text `None` if the type `hint` allows it, because TOML and flags have no None."""
    return None if isinstance(value, str) and value == "None" and type(None) in _alternatives(hint)[0] else value


def from_text(key: str, hint: Any, text: str) -> Any:
    """Converts the `text` of a flag for `key` to the type `hint`; raises `ConfigError` if it does not fit."""
    kinds, value = _alternatives(hint)[0], none_by_name(hint, text)
    if value is None:
        return None
    if bool in kinds:
        require(text in ("True", "False"), key, text, "give True or False")
        return text == "True"
    if {int, float} & set(kinds):
        with contextlib.suppress(ValueError):
            value = float(text)
        with contextlib.suppress(ValueError):
            value = int(text)
    return of_type(key, hint, value)


def _alternatives(hint: Any) -> tuple[tuple[type, ...], tuple[str, ...]]:
    """The types, and the words of Literals, that a type or union of types allows."""
    members = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    literals = [member for member in members if typing.get_origin(member) is typing.Literal]
    kinds = tuple(typing.get_origin(member) or member for member in members if member not in literals)
    return kinds, tuple(word for literal in literals for word in typing.get_args(literal))


def field_types(cls: Any) -> dict[str, Any]:
    """The types of a dataclass's fields by name, without class variables."""
    return _field_types(cls)  # which mypy would not let have the type of a dataclass


@functools.cache
def _field_types(cls: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def importable(key: str, name: str, form: str, *builtin: str) -> None:
    """Requires `name` to be one of the `builtin` names, or of the `form` `module:function` or `module:class`."""
    no_file(key, name)
    is_own = isinstance(name, str) and re.fullmatch(r"\w[\w.]*:\w+", name) is not None
    allowed = f"give {', '.join(builtin)} or {form}" if builtin else f"give {form} names"
    require(name in builtin or is_own, key, name, allowed)


def no_file(key: str, name: object) -> None:
    """Requires that `name`, if it has the form `module:name`, names the module as Python does and not its file."""
    file, _, attribute = str(name).partition(":")
    if not file.endswith(".py"):
        return
    path = Path(file)
    elsewhere = path.is_absolute() or ".." in path.parts
    module = path.stem if elsewhere else ".".join(path.with_suffix("").parts)
    folder = f" in the folder {path.parent}" if elsewhere else ""
    raise ConfigError(f"{key}: {name!r} names a file; give {module}:{attribute or 'Id'}{folder}")


def device_name(key: str, name: str) -> None:
    """Requires `name` to be the name of a device."""
    require(bool(re.fullmatch(r"auto|cpu|cuda(:\d+)?", name)), key, name, "give cpu, cuda, cuda:N or auto")
