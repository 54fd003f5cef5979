"""`ConfigError`, the one-line answer to an unusable value from the user, and functions that raise it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from apex_acer.system.output import printable

LONGEST_LINE = 1000  # characters
# numbers may be too large for their types, nesting too deep for the stack, tensors too large for memory
WRONG_FILE = (ArithmeticError, AttributeError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError)


class ConfigError(Exception):
    """A value from the user cannot be used; the message is one line: key or path, value, what is allowed."""


def require(condition: bool, key: str, value: object, allowed: str) -> None:
    """Raises `ConfigError` naming `key`, its `value` and what is `allowed`, unless `condition` is true."""
    if not condition:
        raise ConfigError(f"{key}: {value!r} is not allowed; {allowed}")


@contextlib.contextmanager
def reading(source: str) -> Iterator[None]:
    """Turns an error while the file `source` is read into a `ConfigError` of one line."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(_line(str(error))) from None
    except WRONG_FILE as error:
        raise ConfigError(f"{source}: cannot be read ({type(error).__name__}: {_line(str(error))})") from None


@contextlib.contextmanager
def writing(key: str, path: Path) -> Iterator[None]:
    """Turns an `OSError` while the file or folder `path`, the value of `key`, is written into a `ConfigError`."""
    try:
        yield
    except OSError as error:
        what = f"{str(path)!r} cannot be written ({error.strerror}); give a writable folder"
        raise ConfigError(f"{key}: {what}") from None


def _line(text: str) -> str:
    line = printable(text)
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…"
