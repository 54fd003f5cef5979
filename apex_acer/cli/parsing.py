"""Parses a command line into a dataclass, and prints help that fits a screen. The first error is reported in one line."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import re
import typing
from collections import deque
from typing import Any, TypeVar

import tyro

from apex_acer.cli.flags import REGISTRY, Flags, FlagType, annotated_fields, flags_of
from apex_acer.cli.notice import PROGRAM, HelpShown
from apex_acer.config import ConfigError, RunConfig, require
from apex_acer.config.checks import from_text
from apex_acer.config.keys import nearest
from apex_acer.config.runfile import from_dict, load_run, over, rebuilt, to_dict

T = TypeVar("T")

COMMON = {
    "--actors N": "actor processes; 0: as many as fit the cores of this machine",
    "--steps N": "environment steps in total",
    "--until RETURN": "stop once an evaluation has this mean return, and keep its weights; None: no target",
    "--minutes N": "stop after this many minutes",
    "--seed S": "the run's seed; every process derives its own",
    "--out DIR": "the run's folder; by default a new one under runs/",
    "--load WEIGHTS": "start from a weights file",
    "--log-level LEVEL": "lowest level of the lines in log.txt: debug, info, warning or error",
    "--engine serial": "run everything in one process, reproducible to the bit",
    "--environment.id ID": "another environment, as gymnasium knows it",
    "--algorithm.replay-ratio X": "replayed steps per fresh step",
    "--optimizer.learning-rate X": "step size",
    "--evaluation.every N": "environment steps between evaluations; 0: no evaluations",
    "--help-all": "show all flags, with the values of RUN",
}
"""The flags of every run that most users need, for the short help."""


@dataclasses.dataclass(frozen=True)
class Draft(RunConfig):
    """A run whose sections need not fit each other yet, because flags may still change them."""

    def check_together(self) -> None:
        """Checks nothing."""


def parse(cls: type[T], arguments: list[str], verb: str, default: T | None = None) -> T:
    """An instance of `cls`, whose fields are the flags; raises `ConfigError` for a wrong flag, `HelpShown` after help."""
    keywords: dict[str, Any] = {} if default is None else {"default": default}
    wants_help = bool({"-h", "--help", "--help-all"} & set(arguments))
    checked = ["--help"] if wants_help else _check(cls, arguments, verb, default)
    errors, program = io.StringIO(), f"{PROGRAM} {verb}"
    try:
        with contextlib.redirect_stderr(errors):
            parsed: T = tyro.cli(
                cls, args=checked, prog=program, description=cls.__doc__, registry=REGISTRY, **keywords
            )
    except SystemExit as left:
        if left.code:  # `_check` let it pass, and tyro printed an error in a box
            raise ConfigError(" ".join(re.findall(r"[^\s\u2500-\u257f]+", errors.getvalue()))) from None
        raise HelpShown from None
    return parsed


def parse_run(cls: type[T], arguments: list[str], verb: str, flags: dict[str, str]) -> T:
    """Parses arguments that begin with RUN, whose values are the defaults of the field `config`.

    Raises `ConfigError` for a wrong flag, `HelpShown` after help.

    `flags` describes, for the short help, the flags of `cls` that are no keys of a run.
    """
    if {"-h", "--help"} & set(arguments):
        print(_short_help(cls, verb, flags))
        raise HelpShown
    first = arguments[0] if arguments else ""
    if first.startswith("-") or not first:
        if "--help-all" not in arguments:
            raise ConfigError(f"run: none is given; give a preset or a TOML file first: {PROGRAM} {verb} RUN [flags]")
        default, rest = RunConfig(), arguments
    else:
        default, rest = load_run(first), arguments[1:]
        if name := _named_algorithm(arguments):
            default = from_dict(over(to_dict(default), {"algorithm": {"name": name}}), kind=Draft)
    parsed: Any = parse(cls, rest, f"{verb} RUN", cls(config=default))  # type: ignore[call-arg]
    return dataclasses.replace(parsed, config=rebuilt(parsed.config))  # type: ignore[no-any-return]


def _named_algorithm(arguments: list[str]) -> str:
    """The value of `--algorithm.name`, on which the other flags depend; empty without it."""
    last = ""
    for word, following in itertools.pairwise([*arguments, ""]):
        flag, equals, value = word.partition("=")
        name = value if equals else following
        if flag == "--algorithm.name" and name and not name.startswith("-"):
            last = name
    return last


def _short_help(cls: type[Any], verb: str, flags: dict[str, str]) -> str:
    lines = [f"usage: {PROGRAM} {verb} RUN [flags]", "", cls.__doc__ or "", ""]
    return "\n".join(lines + [f"  {flag:<30} {meaning}" for flag, meaning in (flags | COMMON).items()])


# ── the check before tyro ──


def _check(cls: type, arguments: list[str], verb: str, default: Any) -> list[str]:
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


def _values(name: str, flag: FlagType, rest: deque[str]) -> list[str]:
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


def _unknown(name: str, flags: Flags, others: Flags) -> FlagType:
    """Raises `ConfigError`; `others` contains the flags of all algorithms."""
    if name.replace("_", "-") in others:
        raise ConfigError(f"{name}: unknown flag; it is one of another algorithm, which --algorithm.name chooses")
    keys = {flag.removeprefix("--").replace("-", "_"): flag for flag in flags}
    near = keys.get(nearest(name.removeprefix("--"), keys))
    if near is None:
        raise ConfigError(f"{name}: unknown flag; --help-all lists all")
    short = min((flag for flag in flags if flags[flag] is flags[near]), key=len)
    raise ConfigError(f"{name}: unknown flag; did you mean {short}?")


def _check_words(cls: type, words: list[str], verb: str) -> None:
    places = [(name, hint, marks) for name, hint, marks in annotated_fields(cls) if tyro.conf.Positional in marks]
    defaults = {field.name: field.default for field in dataclasses.fields(cls)}
    needed = [marks for name, _, marks in places if defaults[name] is dataclasses.MISSING]
    if len(words) < len(needed):
        metavar = next(mark.metavar for mark in needed[len(words)] if getattr(mark, "metavar", None))
        raise ConfigError(f"{verb}: {metavar} is missing; --help says more")
    several = any(typing.get_origin(hint) is tuple for _, hint, _ in places)
    if len(words) > len(places) and not several:
        word = words[len(places)]
        name, equals, _ = word.lstrip("-").partition("=")
        is_flag = equals or word.startswith("-")
        hint = f"flags begin with two dashes: --{name}" if is_flag else "--help says more"
        raise ConfigError(f"{verb.partition(' ')[0]}: unexpected argument {word!r}; {hint}")
