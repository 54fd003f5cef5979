"""The flags that a dataclass has, and a check of the command line that reports its first error in one line."""

from __future__ import annotations

import dataclasses
import typing
from collections import deque
from typing import Any, NamedTuple

import tyro

from apex_acer.config import AlgorithmConfig, ConfigError, require, settings_classes
from apex_acer.config.checks import field_types, from_text
from apex_acer.config.keys import nearest


class Flag(NamedTuple):
    """What a flag takes."""

    hint: Any
    """The type of each value; None: the flag takes no value."""
    several: bool = False
    """Whether it takes all values up to the next flag."""


Flags = dict[str, Flag]


def flags_of(cls: type, default: Any = None, prefix: str = "--") -> Flags:
    """The flags that tyro makes of a dataclass and the dataclasses within it.

    The algorithm's flags are those of the algorithm in `default`; without a default, of all that come with this package.
    """
    found: Flags = {}
    for name, hint, marks in _fields(cls):
        if tyro.conf.Positional in marks:
            continue
        if dataclasses.is_dataclass(hint):
            inner = f"{prefix}{name}." if not any(getattr(mark, "name", None) == "" for mark in marks) else prefix
            held = getattr(default, name, None)
            kinds = settings_classes().values() if hint is AlgorithmConfig else [typing.cast("type", hint)]
            for kind in kinds if held is None else [type(held)]:
                found |= flags_of(kind, held, inner)
            continue
        names = [f"{prefix}{name}".replace("_", "-")]
        if hint is bool and tyro.conf.FlagCreatePairsOff not in marks:
            names.append(f"{prefix}no-{name}".replace("_", "-"))
        names += [alias for mark in marks for alias in getattr(mark, "aliases", None) or ()]
        found |= dict.fromkeys(names, _flag(hint, marks))
    return found


def check(cls: type, arguments: list[str], verb: str, default: Any = None) -> list[str]:
    """`arguments` with whole numbers like 1e6 written out; raises `ConfigError` for the first that is not allowed."""
    flags = flags_of(cls, default)
    words, checked = list[str](), list[str]()
    rest = deque(arguments)
    while rest:
        word = rest.popleft()
        if not word.startswith("--"):
            words.append(word)
            checked.append(word)
            continue
        name, equals, value = word.partition("=")
        flag = flags.get(name.replace("_", "-")) or _unknown(name, flags, flags_of(cls))
        checked += [name, *_values(name, flag, deque([value]) if equals else rest)]
        require(not (equals and flag.hint is None), name, value, "it takes no value")
    _check_words(cls, words, verb)
    return checked


def _fields(cls: type) -> list[tuple[str, Any, tuple[Any, ...]]]:
    """The name, the type and tyro's markers of each field."""
    hints = field_types(cls, include_extras=True).items()
    parts = [(name, typing.get_args(hint) if hasattr(hint, "__metadata__") else (hint,)) for name, hint in hints]
    return [(name, hint, tuple(marks)) for name, (hint, *marks) in parts]


def _flag(hint: Any, marks: tuple[Any, ...]) -> Flag:
    if hint is bool:
        return Flag(None)
    if typing.get_origin(hint) is not tuple:
        return Flag(hint)
    return Flag(typing.get_args(hint)[0], several=tyro.conf.UseAppendAction not in marks)


def _values(name: str, flag: Flag, rest: deque[str]) -> list[str]:
    """Removes the values of a flag from the `rest` of the command line and returns them."""
    texts: list[str] = []
    while flag.hint is not None and rest and not rest[0].startswith("--") and (flag.several or not texts):
        text = rest.popleft()
        apart = f"give the values apart, as {name} {text.strip('[]()').replace(',', ' ')}"
        require(not (flag.several and "," in text), name, text, apart)
        value = from_text(name, flag.hint, text)
        texts.append(str(value) if type(value) is int else text)
    if flag.hint is not None and not texts and not flag.several:
        raise ConfigError(f"{name}: no value is given; {_allowed(name, flag.hint)}")
    return texts


def _allowed(name: str, hint: Any) -> str:
    """What `from_text` says is allowed, from the error that it raises for an empty text."""
    try:
        from_text(name, hint, "")
    except ConfigError as error:
        return str(error).partition("; ")[2]
    return "give one"


def _unknown(name: str, flags: Flags, others: Flags) -> Flag:
    """Raises `ConfigError`; `others` contains the flags of all algorithms."""
    if name.replace("_", "-") in others:
        raise ConfigError(f"{name}: unknown flag; it is one of another algorithm, which --algorithm.name chooses")
    keys = {flag.removeprefix("--").replace("-", "_"): flag for flag in flags}
    near = keys.get(nearest(name.removeprefix("--"), keys))
    if near is None:
        raise ConfigError(f"{name}: unknown flag; --help-all lists all")
    short = min((flag for flag in flags if flags[flag] is flags[near]), key=len)
    raise ConfigError(f"{name}: unknown flag; did you mean {short}?")


def _check_words(cls: type, given: list[str], verb: str) -> None:
    places = [(name, hint, marks) for name, hint, marks in _fields(cls) if tyro.conf.Positional in marks]
    defaults = {field.name: field.default for field in dataclasses.fields(cls)}
    needed = [marks for name, _, marks in places if defaults[name] is dataclasses.MISSING]
    if len(given) < len(needed):
        metavar = next(mark.metavar for mark in needed[len(given)] if getattr(mark, "metavar", None))
        raise ConfigError(f"{verb}: {metavar} is missing; --help says more")
    several = any(typing.get_origin(hint) is tuple for _, hint, _ in places)
    if len(given) > len(places) and not several:
        word = given[len(places)]
        name, equals, _ = word.lstrip("-").partition("=")
        is_flag = equals or word.startswith("-")
        hint = f"flags begin with two dashes: --{name}" if is_flag else "--help says more"
        raise ConfigError(f"{verb.partition(' ')[0]}: unexpected argument {word!r}; {hint}")
