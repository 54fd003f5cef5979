"""Checks of settings, which raise `ConfigError`, and the conversion of what a user gives to the type of a setting."""

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
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from apex_acer.system.errors import ConfigError, require

MOST_THREADS = 1024  # of one process; no machine gains from more, and a library that cannot start its threads aborts


def at_least(minimum: float, section: str, settings: Any, *names: str) -> None:
    """Requires the fields `names` of the `settings`, which are keys of `section`, to be finite and at least `minimum`."""
    for key, value in _values(section, settings, names):
        finite = math.isfinite(value)
        allowed = f"give {minimum} or more{'' if finite else ', and finite'}"
        require(finite and value >= minimum, key, value, allowed)


def positive(section: str, settings: Any, *names: str) -> None:
    """Requires the fields `names` of the `settings`, which are keys of `section`, to be finite and above 0."""
    for key, value in _values(section, settings, names):
        allowed = f"give a number above 0{'' if math.isfinite(value) else ', and finite'}"
        require(math.isfinite(value) and value > 0, key, value, allowed)


def fraction(section: str, settings: Any, *names: str, one: bool = True) -> None:
    """Requires the fields `names` of the `settings`, keys of `section`, to be between 0 and 1; below 1 unless `one`."""
    for key, value in _values(section, settings, names):
        ok = 0 <= value <= 1 and (one or value < 1)
        require(ok, key, value, f"give 0 to 1{'' if one else ', below 1'}")


def thread_count(key: str, value: int) -> None:
    """Requires `value` to be a number of threads, or 0."""
    require(0 <= value <= MOST_THREADS, key, value, f"give 0 to {MOST_THREADS}")


def _values(section: str, settings: Any, names: Iterable[str]) -> list[tuple[str, float]]:
    return [(f"{section}.{name}", getattr(settings, name)) for name in names]


def json_object(key: str, given: object) -> dict[str, Any]:
    """The dict that `given`, the value of `key`, is or is in JSON; raises `ConfigError` if it is not one."""
    if isinstance(given, Mapping):
        return json_object(key, as_json(key, given))
    try:
        values = json.loads(str(given))
    except (ValueError, RecursionError):  # not JSON, numbers too long, or nested too deeply
        values = None
    require(isinstance(values, dict), key, given, 'give one JSON object, such as {"length": 7}')
    return dict(values)


def as_json(key: str, values: Mapping[str, Any]) -> str:
    """`values` of `key` as JSON; raises `ConfigError` if JSON cannot hold them."""
    try:
        text = json.dumps(values, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        text = ""
    plain = bool(text) and all(isinstance(name, str) for name in values)
    allowed = "give values that JSON has: strings, numbers, true, false, lists, tables"
    require(plain, key, dict(values), allowed)
    return text


def typed(section: str, settings: Any) -> None:
    """Requires each field of the dataclass `settings` to be what `of_type` converts to its type."""
    for name, hint in field_types(type(settings)).items():
        of_type(f"{section}.{name}".lstrip("."), hint, getattr(settings, name))


def of_type(key: str, hint: Any, value: Any) -> Any:
    """The `value` of `key` converted to the type `hint`; raises `ConfigError` if it does not fit.

    An int is allowed for a float, a whole float such as 1e6 for an int, a list for a tuple, and a dict for JSON.
    """
    if typing.get_origin(hint) is tuple:
        require(isinstance(value, list | tuple), key, value, "give a list")
        return tuple(of_type(key, typing.get_args(hint)[0], item) for item in value)
    words, kinds = _words(hint), _kinds(hint)
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
    """`value`, or None for the word `None` if the type `hint` allows it: TOML and flags have no other word for it."""
    return None if isinstance(value, str) and value == "None" and type(None) in _kinds(hint) else value


def from_text(key: str, hint: Any, text: str) -> Any:
    """The `text` of a command line for `key`, converted to the type `hint`; raises `ConfigError` if it does not fit."""
    kinds, value = _kinds(hint), none_by_name(hint, text)
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


def _members(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)


def _words(hint: Any) -> tuple[str, ...]:
    literals = (kind for kind in _members(hint) if typing.get_origin(kind) is typing.Literal)
    return tuple(word for literal in literals for word in typing.get_args(literal))


def _kinds(hint: Any) -> tuple[type, ...]:
    plain = (kind for kind in _members(hint) if typing.get_origin(kind) is not typing.Literal)
    return tuple(typing.get_origin(kind) or kind for kind in plain)


def field_types(cls: Any, *, include_extras: bool = False) -> dict[str, Any]:
    """The types of a dataclass's fields by name, without those of its class variables."""
    return _field_types(cls, include_extras)


@functools.cache
def _field_types(cls: Any, include_extras: bool) -> dict[str, Any]:
    hints = typing.get_type_hints(cls, include_extras=include_extras)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def importable(key: str, name: str, kind: str, *builtin: str) -> None:
    """Requires `name` to be one of the `builtin` names, or of the form `kind`: `module:function` or `module:class`."""
    allowed = f"give {', '.join(builtin)} or {kind}" if builtin else f"give {kind} names"
    no_file(key, name)
    own = isinstance(name, str) and re.fullmatch(r"\w[\w.]*:\w+", name)
    require(name in builtin or bool(own), key, name, allowed)


def no_file(key: str, name: object) -> None:
    """Requires that `name`, if it is of the form `module:name`, names the module as Python does and not its file."""
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
    kind, _, number = name.partition(":")
    ok = name in ("auto", "cpu", "cuda") or (kind == "cuda" and number.isdigit())
    require(ok, key, name, "give cpu, cuda, cuda:N or auto")
