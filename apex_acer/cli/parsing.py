"""Parses the arguments of a verb into its dataclass, and prints help; the first error is one line."""

from __future__ import annotations

import dataclasses
import itertools
import re
import textwrap
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from apex_acer.cli.flags import Flag, described, flags_of, places_of
from apex_acer.cli.notice import PROGRAM
from apex_acer.config import ConfigError, RunConfig, require
from apex_acer.config.checks import field_types, from_text
from apex_acer.config.keys import nearest
from apex_acer.config.runfile import from_dict, load_run, over, to_dict

T = TypeVar("T")
COLUMNS = 80  # of help

COMMON = {
    "--actors N": "Actor processes; 0: as many as fit the cores",
    "--steps N": "Environment steps in total",
    "--until RETURN": "End at this mean return of an evaluation",
    "--minutes N": "End after this many minutes",
    "--seed S": "Seed of the run; every process derives its own",
    "--out DIR": "Folder of the run; by default a new one in runs/",
    "--load WEIGHTS": "Start from a weights file",
    "--log-level LEVEL": "Level of log.txt: debug, info, warning, error",
    "--engine serial": "Run in one process, reproducible to the bit",
    "--environment.id ID": "Another environment, as gymnasium knows it",
    "--algorithm.replay-ratio X": "Replayed steps per fresh step",
    "--optimizer.learning-rate X": "Step size",
    "--evaluation.every N": "Environment steps between evaluations; 0: none",
    "--help-all": "Show all flags, with the values of RUN",
}
"""The keys of a run that most users set, for the short help."""


def parse(cls: type[T], arguments: Sequence[str]) -> T:
    """The arguments of the verb whose dataclass is `cls`, the first of which is RUN if it has a `RunConfig`.

    Raises `ConfigError` for the first argument that is wrong.
    """
    verb = cls.__name__.lower()
    base: dict[str, Any] = {}
    if has_run(cls):
        if not arguments or arguments[0].startswith("-"):
            raise ConfigError(f"run: none is given; give a preset or a TOML file first: {PROGRAM} {verb} RUN [flags]")
        base, arguments = _run(arguments), arguments[1:]
    words, values = _split(arguments, flags_of(cls, {"config": base}), cls)
    values |= _placed(cls, words, verb)
    sections: dict[str, Any] = {name: hint for name, hint in field_types(cls).items() if dataclasses.is_dataclass(hint)}
    for name, section in sections.items():
        keys = values.get(name, {})
        values[name] = from_dict(over(base, keys)) if section is RunConfig else section(**keys)
    return cls(**values)


def has_run(cls: type) -> bool:
    """Whether the verb takes a run and all keys of runs."""
    return RunConfig in field_types(cls).values()


def help_text(cls: type, arguments: Sequence[str], usage: str) -> str:
    """Help on a verb: its arguments and flags; without `--help-all` only the most common keys of a run."""
    lines = [f"usage: {PROGRAM} {usage}", ""]
    for paragraph in (cls.__doc__ or "").split("\n\n"):
        lines += [*textwrap.wrap(" ".join(paragraph.split()), COLUMNS), ""]
    if has_run(cls) and "--help-all" not in arguments:
        own = {name: flag for name, flag in flags_of(cls).items() if not flag.key.startswith("config.")}
        brief = {head: meaning.partition(". ")[0].rstrip(".") for head, meaning, _ in described(cls, own)}
        return "\n".join([*lines, *(f"  {head:<28} {meaning}" for head, meaning in (brief | COMMON).items())])
    has_name = has_run(cls) and not arguments[0].startswith("-")
    base = _run(arguments) if has_name else to_dict(RunConfig())
    for head, meaning, default in described(cls, flags_of(cls, {"config": base})):
        value = " ".join(map(str, default)) if isinstance(default, tuple | list) else str(default)
        is_plain = default in (dataclasses.MISSING, None, "") or default is False or not value
        text = meaning if is_plain else f"{meaning} (default: {value})"
        for indent, part in (("  ", head), ("      ", text)):
            wrapped = textwrap.wrap(part, COLUMNS - len(indent), break_on_hyphens=False, break_long_words=False)
            lines += (indent + line for line in wrapped)
    return "\n".join(lines)


def _run(arguments: Sequence[str]) -> dict[str, Any]:
    """The keys of the run that the first argument names, of the algorithm that the last `--algorithm.name` names."""
    base, name = to_dict(load_run(arguments[0])), ""
    for word, following in itertools.pairwise([*arguments, "--"]):
        flag, equals, value = word.partition("=")
        value = value if equals else following
        if flag == "--algorithm.name" and not value.startswith("-"):
            name = value
    return over(base, {"algorithm": {"name": name}}) if name else base


def _split(arguments: Sequence[str], flags: Mapping[str, Flag], cls: type) -> tuple[list[str], dict[str, Any]]:
    """The words that belong to no flag, and the values of flags by key, nested."""
    words: list[str] = []
    values: dict[str, Any] = {}
    rest = deque(arguments)
    while rest:
        word = rest.popleft()
        if not word.startswith("--"):
            words.append(word)
            continue
        name, equals, text = word.partition("=")
        flag = flags.get(name.replace("_", "-"))
        if flag is None:
            raise _unknown(name, flags, flags_of(cls))
        if flag.switch is not None and (equals or (rest and rest[0].lower() in ("true", "false"))):
            require(False, name, text if equals else rest[0], f"it takes no value{_opposite(flag, flags)}")
        *sections, last = flag.key.split(".")
        section = values
        for each in sections:
            section = section.setdefault(each, {})
        value = flag.switch if flag.switch is not None else _value(name, flag, deque([text]) if equals else rest)
        section[last] = (*section.get(last, ()), value) if flag.form else value
    return words, values


def _value(name: str, flag: Flag, rest: deque[str]) -> Any:
    """Removes the value of a flag from the `rest` of the arguments and returns it, or a tuple of its values."""
    values: list[Any] = []
    while rest and not rest[0].startswith("--") and (flag.takes_all or not values):
        text = rest.popleft()
        apart = f"give the values apart, as {name} {text.strip('[]()').replace(',', ' ')}"
        require(not (flag.takes_all and "," in text), name, text, apart)
        values.append(from_text(name, flag.item, text))
    if flag.takes_all:
        return tuple(values)
    if values:
        return values[0]
    try:
        from_text(name, flag.item, "")
    except ConfigError as error:  # it says what is allowed
        raise ConfigError(f"{name}: no value is given; {str(error).partition('; ')[2]}") from None
    raise ConfigError(f"{name}: no value is given; give one")


def _opposite(flag: Flag, flags: Mapping[str, Flag]) -> str:
    """Names the switch that sets the same key to the other value, if there is one."""
    names = [name for name, each in flags.items() if each == flag._replace(switch=not flag.switch)]
    return f"; {names[0]} is its opposite" if names else ""


def _unknown(name: str, flags: Mapping[str, Flag], others: Mapping[str, Flag]) -> ConfigError:
    """The error for an unknown flag; `others` are the flags of all algorithms."""
    if name.replace("_", "-") in others:
        return ConfigError(f"{name}: unknown flag; it is one of another algorithm, which --algorithm.name chooses")
    keys = {flag.removeprefix("--").replace("-", "_"): flag for flag in flags}
    # `--no-replay.compress` means `--replay.no-compress`
    keys |= {re.sub(r"(.*\.)no_", r"no_\1", key): flag for key, flag in keys.items()}
    near = keys.get(nearest(name.removeprefix("--"), keys))
    if near is None:
        return ConfigError(f"{name}: unknown flag; --help-all lists all")
    short = min((flag for flag in flags if flags[flag] is flags[near]), key=len)
    return ConfigError(f"{name}: unknown flag; did you mean {short}?")


def _placed(cls: type, words: Sequence[str], verb: str) -> dict[str, Any]:
    """The values of the arguments without a flag, by field."""
    places, hints = places_of(cls), field_types(cls)
    needed = [name for name, field in places.items() if field.default is dataclasses.MISSING]
    if len(words) < len(needed):
        raise ConfigError(f"{verb}: {needed[len(words)]} is missing; --help says more")
    values: dict[str, Any] = {}
    rest = deque(words)
    for name, field in places.items():
        if rest:
            is_tuple = str(hints[field.name]).startswith("tuple")
            values[field.name] = tuple(rest) if is_tuple else from_text(name, hints[field.name], rest.popleft())
            rest = deque() if is_tuple else rest
    if rest:
        name, equals, _ = rest[0].lstrip("-").partition("=")
        is_flag = equals or rest[0].startswith("-")
        hint = f"flags begin with two dashes: --{name}" if is_flag else "--help says more"
        raise ConfigError(f"{verb}: unexpected argument {rest[0]!r}; {hint}")
    return values
