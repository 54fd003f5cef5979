"""What a study does: the settings that it may try, which the `--vary` flags describe, checked before anything starts."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import shlex
import time
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from apex_acer.config import RunConfig, require
from apex_acer.tools.sweep.training import Training, check_before, runs_at_once, without_out
from apex_acer.tools.sweep.variants import Axis, Values, keys_once, override, parse_axis

NOT_TUNED = ("evaluation.", "stop.")  # trials are compared by these
MOST_CORNERS = 1024
RANGE = "give KEY=LOW:HIGH, KEY=LOW:HIGH:log or KEY=VALUE,VALUE"


@dataclass(frozen=True)
class Range:
    """All numbers from `low` to `high`; whole numbers if both are ints."""

    key: str
    low: float
    high: float
    log: bool
    """Whether numbers are drawn evenly on a logarithmic scale."""

    def values(self, number: float) -> Values:
        """The key's value."""
        return {self.key: number}

    @property
    def ends(self) -> list[Values]:
        """The outermost values."""
        return [self.values(self.low), self.values(self.high)]

    def find(self, base: Mapping[str, Any]) -> float | None:
        """The number that a run's values by dotted key have; None if it is not in the range."""
        number = base[self.key]
        fits = isinstance(number, int | float) and self.low <= number <= self.high
        return number if fits else None


@dataclass(frozen=True)
class Choice:
    """One of several values of a key, or of several keys that vary together."""

    key: str
    """The key; several are joined by `:`."""
    options: Mapping[str, Values]
    """Values by dotted key, by the text that the user gave."""

    def values(self, text: str) -> Values:
        """The values of the keys."""
        return self.options[text]

    @property
    def ends(self) -> list[Values]:
        """All of them."""
        return list(self.options.values())

    def find(self, base: Mapping[str, Any]) -> str | None:
        """The option whose values a run has; None if it has others."""
        options = (text for text, values in self.options.items() if all(base[k] == v for k, v in values.items()))
        return next(options, None)


Dimension = Range | Choice


@dataclass(frozen=True)
class TunePlan:
    """What tuning does; everything is checked."""

    command: str
    """The command line that the user typed."""
    folder: Path
    base: RunConfig
    vary: Sequence[str]
    space: Sequence[Dimension]
    trials: int
    """Trials in total, those of other machines and earlier commands included."""
    seeds: Sequence[int]
    at_once: int
    """Trials at the same time."""

    @property
    def identity(self) -> dict[str, Any]:
        """What must be the same for the study to go on."""
        return {"run": without_out(self.base), "seeds": list(self.seeds), "vary": list(self.vary)}

    @property
    def has_target(self) -> bool:
        """Whether scores are environment steps to a target, the fewer the better, and not returns."""
        return self.base.stop.at_return is not None

    def config(self, chosen: Mapping[str, Any]) -> RunConfig:
        """The run with what a trial has chosen; raises `ConfigError` for values that are only allowed with others."""
        return override(self.base, settings(self.space, chosen))

    def jobs(self, number: int, config: RunConfig) -> list[Training]:
        """The run of each seed of a trial."""
        configs = (dataclasses.replace(config, seed=seed, out="") for seed in self.seeds)
        return [Training(self.folder, group(number), config) for config in configs]


def plan_tuning(
    base: RunConfig, arguments: Sequence[str], *, trials: int, seeds: int, vary: Sequence[str], at_once: int
) -> TunePlan:
    """The study that the command line asks for, whose `arguments` begin with the run's name; raises `ConfigError`.

    `base` has the first of the `seeds` and the study's folder; `at_once` 0 means as many trials as the cores allow.
    """
    for key, value, least in (("trials", trials, 1), ("seeds", seeds, 1), ("jobs", at_once, 0)):
        require(value >= least, key, value, f"give {least} or more")
    require(base.evaluation.every > 0, "evaluation.every", 0, "trials are compared by evaluations; give 1 or more")
    budget = f"trials are compared by evaluations; give at most stop.env_steps ({base.stop.env_steps})"
    require(base.evaluation.every <= base.stop.env_steps, "evaluation.every", base.evaluation.every, budget)
    space = make_space(base, vary)
    name = Path(arguments[0]).stem
    folder = Path(base.out or f"studies/{name}-{time.strftime('%Y%m%d-%H%M%S')}")
    command = shlex.join(["apex-acer", "tune", *arguments])
    numbers = range(base.seed, base.seed + seeds)
    check_before(corners(base, space))
    return TunePlan(command, folder, base, vary, space, trials, numbers, at_once or runs_at_once([base]))


def make_space(base: RunConfig, vary: Sequence[str]) -> list[Dimension]:
    """What the `--vary` flags allow; raises `ConfigError` for a wrong key or value.

    They are `KEY=LOW:HIGH`, `KEY=LOW:HIGH:log`, or what `sweep` takes: `KEY=V1,V2` and `K1:K2=V1:V2,W1:W2`.
    """
    require(bool(vary), "vary", "", RANGE)
    axes = [parse_axis(base, text) for text in vary]
    for key in keys_once(axes):
        require(not key.startswith(NOT_TUNED), "vary", key, "trials are compared by it; give it as a flag of its own")
    return [_dimension(axis) for axis in axes]


def corners(base: RunConfig, space: Sequence[Dimension]) -> list[RunConfig]:
    """The run with every combination of outermost values, or if there are too many, with 1,024 of them.

    Raises `ConfigError` if one is not allowed.
    """
    ends = [of.ends for of in space]
    if math.prod(map(len, ends)) <= MOST_CORNERS:
        every: Iterable[tuple[Values, ...]] = itertools.product(*ends)
    else:
        draw = random.Random(0)
        every = (tuple(map(draw.choice, ends)) for _ in range(MOST_CORNERS))
    return [override(base, {key: value for part in parts for key, value in part.items()}) for parts in every]


def settings(space: Sequence[Dimension], chosen: Mapping[str, Any]) -> Values:
    """Values by dotted key, of what a trial has `chosen` for each dimension's `key`."""
    return {key: value for of in space for key, value in of.values(chosen[of.key]).items()}


def start(space: Sequence[Dimension], base: RunConfig) -> dict[str, Any] | None:
    """What chooses the run `base` as it is; None if one of its values is not in the space."""
    values = {key: attrgetter(key)(base) for of in space for end in of.ends for key in end}
    chosen = {of.key: of.find(values) for of in space}
    return None if None in chosen.values() else chosen


def _dimension(axis: Axis) -> Dimension:
    key = ":".join(axis.types)
    kinds = typing.get_args(axis.types[key]) or (axis.types[key],) if key in axis.types else ()
    if {int, float} & set(kinds) and ":" in axis.values:
        return _range(axis, key)
    texts = axis.values.split(",")
    require(len(set(texts)) == len(texts), "vary", axis.values, "give each value once")
    return Choice(key, {text: axis.choice(text) for text in texts})


def _range(axis: Axis, key: str) -> Range:
    parts = axis.values.split(":")
    require(len(parts) == 2 or parts[2:] == ["log"], "vary", f"{key}={axis.values}", RANGE)
    low, high = (axis.value(key, text) for text in parts[:2])
    for end in (low, high):
        number = isinstance(end, int | float) and math.isfinite(end)
        require(number, "vary", f"{key}={axis.values}", "give finite numbers")
    require(low < high, "vary", f"{key}={axis.values}", "give the lower end first")
    log = len(parts) == 3
    require(low > 0 or not log, "vary", f"{key}={axis.values}", "a logarithmic range begins above 0")
    return Range(key, low, high, log)


def group(number: int) -> str:
    """The folder of a trial in the study's folder."""
    return f"trials/{number:04d}"
