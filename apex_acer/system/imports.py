"""Imports what a user names as `module:name`, such as an algorithm, and finds the user's own line in errors."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, TypeVar

from apex_acer.system.errors import ConfigError, require

T = TypeVar("T")
OURS = ("apex_acer", "gymnasium", "ale_py")  # packages that may be imported by name, whoever gives the name
FOREIGN = {*OURS, "numpy", "torch"}  # errors may be raised here, but the user's mistake is elsewhere


def search_path() -> list[str]:
    """The folders in which Python looks for modules: what else is in `sys.path`, such as a `Path`, it passes over."""
    return [entry for entry in sys.path if isinstance(entry, str)]


def load(key: str, name: str, kind: str = "function") -> Callable[..., Any]:
    """The function or class `module:name`, which is the value of `key`; raises `ConfigError` if there is none."""
    module, _, attribute = name.partition(":")
    value = getattr(import_module(key, name, module), attribute, None)
    if not callable(value):
        names = (other for other, known in vars(sys.modules[module]).items() if callable(known))
        raise _absent(key, name, kind, names, origin(module))
    return value  # type: ignore[no-any-return]


def require_there(key: str, name: str, kind: str) -> None:
    """Raises `ConfigError` if `module:name` is not there, as far as its source tells.

    The module is not run: it may import torch, which the manager does without.
    """
    module, _, attribute = name.partition(":")
    if module in sys.modules:
        load(key, name, kind)
        return
    try:
        spec = importlib.util.find_spec(module)
    except Exception as error:  # of the package that the module is in
        raise _not_imported(key, name, error) from error
    if spec is None:
        raise _not_imported(key, name, ModuleNotFoundError(f"No module named {module!r}"))
    origin = spec.origin or ""
    source = Path(origin).read_text(encoding="utf-8", errors="replace") if origin.endswith(".py") else ""
    words = set(re.findall(r"\w+", source))
    makes_names = any(how in source for how in ("import *", "__getattr__", "globals(", "exec("))
    if source and attribute not in words and not makes_names:
        raise _absent(key, name, kind, words, f"{module} is {_path(origin)}")


def _absent(key: str, name: str, kind: str, names: Iterable[str], where: str) -> ConfigError:
    module, _, attribute = name.partition(":")
    near = difflib.get_close_matches(attribute, list(names), n=1, cutoff=0.75)
    hint = f"did you mean {module}:{near[0]}?" if near else f"give module:{kind} ({where})"
    return ConfigError(f"{key}: {name!r} is not a {kind} of the module; {hint}")


def import_module(key: str, value: str, module: str) -> ModuleType:
    """The module that the `value` of `key` names; raises `ConfigError` if it cannot be imported."""
    try:
        return importlib.import_module(module)
    except Exception as error:  # a user's module may raise anything
        raise _not_imported(key, value, error) from error


def _not_imported(key: str, value: str, error: Exception) -> ConfigError:
    reason, allowed = _reason(error), "one that is installed, or is in this folder"
    return ConfigError(f"{key}: {value!r} cannot be imported ({reason}); give an importable module, {allowed}")


def origin(name: str) -> str:
    """The file of the imported module `name`, in words; also a file of this folder that it hides."""
    module = sys.modules[name]
    file = Path(getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", [])), "built into Python"))
    package = name.partition(".")[0]
    here = [path for path in (Path(f"{package}.py"), Path(package, "__init__.py")) if path.is_file()]
    if "." in name or not here or file in [path.absolute() for path in here]:
        return f"{name} is {_path(str(file))}"
    return f"{name} is {_path(str(file))}, which hides {here[0]} of this folder: rename that"


def require_known(key: str, name: str) -> None:
    """Raises `ConfigError` if `module:name` needs an import, because it may come from a file of unknown origin.

    It needs none if the module belongs to a package in `OURS` or was imported before, and is not one of Python's own, whose
    functions make neither environments nor networks.
    """
    module, separator, _ = name.rpartition(":")
    package = module.partition(".")[0]
    imported = module in sys.modules and package not in sys.stdlib_module_names
    known = not separator or package in OURS or imported
    how = "would run it; if you trust the file give --import-modules, in Python import_modules=True"
    require(known, key, name, f"importing {module} {how}")


def attempt(key: str, value: str, make: Callable[[], T]) -> T:
    """The result of `make` for the `value` of `key`; raises `ConfigError` if the user's code in it raises anything."""
    try:
        return make()
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{key}: {value!r} could not be made; {_reason(error)}") from error


@contextlib.contextmanager
def needs(asked_by: str, extra: str) -> Iterator[None]:
    """Raises `ConfigError` if an import inside fails because `extra` is not installed; `asked_by` is a verb or a key."""
    try:
        yield
    except ModuleNotFoundError as error:
        how = f"pip install 'apex-acer[{extra}]', or in a checkout pip install -e '.[{extra}]'"
        raise ConfigError(f"{asked_by}: {error.name} is not installed; {how}") from None


def place(error: BaseException) -> str:
    """`file:line in function` of the user's code that raised `error`; empty if there is none."""
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if _is_users(frame)]
    return _name(*frames[-1]) if frames else ""


def running(frame: FrameType | None) -> str:
    """`file:line in function` of the user's code that is running in `frame`; empty if there is none."""
    frames = [(frame, line) for frame, line in traceback.walk_stack(frame) if _is_users(frame)] if frame else []
    return _name(*frames[0]) if frames else ""


def definition(function: Any) -> str:
    """`file:line in function` of a user's function; empty for other functions."""
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    if code is None or _is_foreign(function.__module__):
        return ""
    return f"{_path(code.co_filename)}:{code.co_firstlineno} in {code.co_qualname}"


def _name(frame: FrameType, line: int) -> str:
    return f"{_path(frame.f_code.co_filename)}:{line} in {frame.f_code.co_name}"


def _is_users(frame: FrameType) -> bool:
    spec = frame.f_globals.get("__spec__")  # has the name of a module that `python -m` runs as `__main__`
    return not _is_foreign(spec.name if spec else frame.f_globals.get("__name__", ""))


def _is_foreign(module: str) -> bool:
    top = module.partition(".")[0]
    return top in FOREIGN or top in sys.stdlib_module_names


def _path(name: str) -> str:
    path, here = Path(name), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _reason(error: BaseException) -> str:
    where, what = place(error), f"{type(error).__name__}: {' '.join(str(error).split())}"
    return f"{what}, at {where}" if where else what
