"""What the verbs share: parsing arguments into dataclasses, and help that fits a screen."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import re
from typing import Annotated, Any, Literal, TypeVar

import tyro

from apex_acer.cli import PROGRAM, HelpShown
from apex_acer.cli.flags import check
from apex_acer.config import ConfigError, EvaluationConfig, RunConfig, require
from apex_acer.config.runfile import load_run, with_algorithm

T = TypeVar("T")
Flag = tyro.conf.FlagCreatePairsOff[bool]

_IMPORTS = "Import the modules that the file names; this runs code from outside this program and gymnasium."
Weights = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="WEIGHTS", help="The .safetensors file of a run.")]
Acting = Annotated[
    Literal["greedy", "sampled"] | None,
    tyro.conf.arg(help="Greedy or sampled actions; by default as in the run's evaluations."),
]
_JOBS = "Runs at the same time; 0: one per core with the serial engine, one per two cores otherwise."
Jobs = Annotated[int, tyro.conf.arg(help=_JOBS)]
ImportModules = Annotated[Flag, tyro.conf.arg(help=_IMPORTS)]

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


def parse(cls: type[T], arguments: list[str], verb: str, default: T | None = None) -> T:
    """An instance of `cls`, whose fields are the flags; raises `ConfigError` for a wrong flag, `HelpShown` after help."""
    keywords: dict[str, Any] = {} if default is None else {"default": default}
    wants_help = bool({"-h", "--help", "--help-all"} & set(arguments))
    given = ["--help"] if wants_help else check(cls, arguments, verb, default)
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            parsed: T = tyro.cli(cls, args=given, prog=f"{PROGRAM} {verb}", description=cls.__doc__, **keywords)
    except SystemExit as left:
        if left.code:  # `check` let it pass, and tyro printed an error in a box
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
            default = with_algorithm(default, name)
    return parse(cls, rest, f"{verb} RUN", cls(config=default))  # type: ignore[call-arg]


def _named_algorithm(arguments: list[str]) -> str:
    """The value of `--algorithm.name`, on which the other flags depend; empty without it."""
    found = ""
    for word, following in itertools.pairwise([*arguments, ""]):
        flag, equals, value = word.partition("=")
        name = value if equals else following
        if flag == "--algorithm.name" and name and not name.startswith("-"):
            found = name
    return found


def evaluation_settings(config: RunConfig, episodes: int | None, policy: str | None) -> EvaluationConfig:
    """The evaluation settings of a run; `episodes` and `policy` (greedy or sampled) replace them unless None."""
    require(episodes is None or episodes >= 1, "episodes", episodes, "give 1 or more")
    settings = config.evaluation
    greedy = settings.greedy if policy is None else policy == "greedy"
    return dataclasses.replace(settings, episodes=episodes or settings.episodes, greedy=greedy)


def playing_seed(config: RunConfig, seed: int | None) -> int:
    """The seed of games to play: the given one, or else the run's."""
    return config.seed if seed is None else dataclasses.replace(config, seed=seed).seed


def _short_help(cls: type[Any], verb: str, flags: dict[str, str]) -> str:
    lines = [f"usage: {PROGRAM} {verb} RUN [flags]", "", cls.__doc__ or "", ""]
    return "\n".join(lines + [f"  {flag:<30} {meaning}" for flag, meaning in (flags | COMMON).items()])
