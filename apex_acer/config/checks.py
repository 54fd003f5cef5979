"""What a value must be; the one error for what a user gave."""

from __future__ import annotations

import contextlib
import math
import re
import typing
from collections.abc import Iterator, Mapping

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


def listed(section: str, settings: object) -> None:
    """Requires each `Literal` field of the dataclass `settings` to hold one of its literals."""
    for name, hint in typing.get_type_hints(type(settings)).items():
        if typing.get_origin(hint) is typing.Literal:
            *others, last = typing.get_args(hint)
            allowed = f"give {', '.join(others)} or {last}" if others else f"give {last}"
            value = getattr(settings, name)
            require(value in (*others, last), f"{section}.{name}".lstrip("."), value, allowed)


def importable(key: str, name: str, kind: str, *builtin: str) -> None:
    """Requires `name` to be one of ours, the `builtin`, or a user's own: a `kind` of `module:function`."""
    allowed = f"give {', '.join(builtin)} or {kind}" if builtin else f"give {kind} names"
    require(name in builtin or re.fullmatch(r"\w[\w.]*:\w+", name) is not None, key, name, allowed)


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
        raise ConfigError(_printable(str(error))) from None
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
        raise ConfigError(f"{source}: of another kind ({type(error).__name__}: {_printable(str(error))})") from None


def _printable(text: str) -> str:
    """`text` on one line, and not longer than one can read."""
    line = "".join(letter if letter.isprintable() else " " for letter in text)
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…"
