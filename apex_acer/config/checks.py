"""What a value must be; the one error for what a user gave."""

from __future__ import annotations

import contextlib
import functools
import math
import numbers
import re
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from apex_acer.system.output import printable

LONGEST_LINE = 1000  # characters
MOST_THREADS = 1024  # of one process; no machine gains from more, and a library that cannot start them ends the process
WRONG_FILE = (ArithmeticError, AttributeError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError)


class ConfigError(Exception):
    """Something the user gave cannot be used; the message is one line: key or path, value, what is allowed."""


def require(condition: bool, key: str, value: object, allowed: str) -> None:
    """Raises `ConfigError` naming `key`, its `value` and what is `allowed`, unless `condition` holds."""
    if not condition:
        raise ConfigError(f"{key}: {value!r} is not allowed; {allowed}")


def at_least(minimum: float, section: str, values: Mapping[str, float]) -> None:
    """Requires each of `values`, named within `section`, to be finite and `minimum` or more."""
    for name, value in values.items():
        require(math.isfinite(value) and value >= minimum, f"{section}.{name}", value, f"give {minimum} or more")


def thread_count(key: str, value: int) -> None:
    """Requires a number of threads, or 0."""
    require(0 <= value <= MOST_THREADS, key, value, f"give 0 to {MOST_THREADS}")


def positive(section: str, values: Mapping[str, float]) -> None:
    """Requires each of `values` to be finite and above 0."""
    for name, value in values.items():
        require(math.isfinite(value) and value > 0, f"{section}.{name}", value, "give a number above 0")


def fraction(section: str, values: Mapping[str, float], *, one: bool = True) -> None:
    """Requires each of `values` to be in 0 to 1; below 1 unless `one`."""
    for name, value in values.items():
        ok = 0 <= value <= 1 and (one or value < 1)
        require(ok, f"{section}.{name}", value, f"give 0 to 1{'' if one else ', below 1'}")


def typed(section: str, settings: Any) -> None:
    """Requires each field of the frozen dataclass `settings` to hold what its type allows, and gives it just that type.

    A whole number will do for a float, a float that is whole, as 1e6, for an int, and a list for a tuple.
    """
    for name, hint in _hints(type(settings)).items():  # type: ignore[arg-type]
        value = of_type(f"{section}.{name}".lstrip("."), hint, getattr(settings, name))
        object.__setattr__(settings, name, value)


def of_type(key: str, hint: Any, value: Any) -> Any:
    """The `value` of `key` as the type `hint` has it; raises `ConfigError` for what is none of it."""
    if typing.get_origin(hint) is tuple:
        require(isinstance(value, list | tuple), key, value, "give a list")
        return tuple(of_type(key, typing.get_args(hint)[0], item) for item in value)
    words, kinds = _words(hint), _kinds(hint)
    if isinstance(value, str) and value in words:
        return value
    if value is None or (
        isinstance(value, str) and value == "None"
    ):  # TOML has no word for it, and flags take this one
        value = None if type(None) in kinds else value
    if isinstance(value, Path) and str in kinds:
        return str(value)
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if is_number and (float in kinds or (int in kinds and value % 1 == 0)):
        is_whole = int in kinds or isinstance(value, numbers.Integral)
        if is_whole and not -(2**63) <= value < 2**63:
            raise ConfigError(f"{key}: an integer beyond 64 bits is not allowed")
        return float(value) if float in kinds else int(value)
    fits = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
    *others, last = [*(kind.__name__ for kind in kinds if kind is not type(None)), *words]
    require(fits, key, value, f"give {', '.join(others)} or {last}" if others else f"give {last}")
    return value


def from_text(key: str, hint: Any, text: str) -> Any:
    """What the `text` of a command line says for `key`, as the type `hint` has it; raises `ConfigError`."""
    kinds, value = _kinds(hint), typing.cast("Any", text)
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
    """The types of which a value may be one."""
    return typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)


def _words(hint: Any) -> tuple[str, ...]:
    """The words that a value may be one of."""
    literals = (kind for kind in _members(hint) if typing.get_origin(kind) is typing.Literal)
    return tuple(word for literal in literals for word in typing.get_args(literal))


def _kinds(hint: Any) -> tuple[type, ...]:
    """The classes that a value may be of, words apart."""
    plain = (kind for kind in _members(hint) if typing.get_origin(kind) is not typing.Literal)
    return tuple(typing.get_origin(kind) or kind for kind in plain)


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def importable(key: str, name: str, kind: str, *builtin: str) -> None:
    """Requires `name` to be one of ours, the `builtin`, or a user's own: a `kind` of `module:function`."""
    allowed = f"give {', '.join(builtin)} or {kind}" if builtin else f"give {kind} names"
    own = isinstance(name, str) and re.fullmatch(r"\w[\w.]*:\w+", name)
    require(name in builtin or bool(own), key, name, allowed)


def device_name(key: str, name: str) -> None:
    """Requires the name of a device."""
    kind, _, number = name.partition(":")
    ok = name in ("auto", "cpu", "cuda") or (kind == "cuda" and number.isdigit())
    require(ok, key, name, "give cpu, cuda, cuda:N or auto")


@contextlib.contextmanager
def reading(source: str) -> Iterator[None]:
    """Within it, whatever is wrong with the file `source` is one line: a `ConfigError`.

    What a file holds may make anything of Python or torch raise anything: numbers beyond every type, nesting beyond the
    stack, tensors beyond memory.
    """
    try:
        yield
    except ConfigError as error:
        raise ConfigError(_line(str(error))) from None
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        MemoryError,
        OSError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise ConfigError(f"{source}: of another kind ({type(error).__name__}: {_line(str(error))})") from None


@contextlib.contextmanager
def writing(key: str, path: Path) -> Iterator[None]:
    """Within it, that the file or folder `path`, which `key` names, cannot be written is one line: a `ConfigError`."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{key}: {str(path)!r} cannot be written ({error.strerror}); give a writable folder"
        ) from None


def _line(text: str) -> str:
    """`text` on one line, and not longer than one can read."""
    line = printable(text)
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…"
