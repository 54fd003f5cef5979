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
from typing import Any, NamedTuple

from apex_acer.config import RunConfig, require
from apex_acer.tools.sweep.training import Training, check_before, runs_at_once, without_out
from apex_acer.tools.sweep.variants import Values, override, parse_flags, parse_value, parse_values

NOT_TUNED = ("evaluation.", "stop.")  # trials are compared by these
MOST_CORNERS = 1024
RANGE = "give KEY=LOW:HIGH, KEY=LOW:HIGH:log or KEY=VALUE,VALUE"


class Range(NamedTuple):
    """The numbers from `low` to `high`; whole numbers if both are ints."""

    low: float
    high: float
    log: bool
    """Whether numbers are drawn evenly on a logarithmic scale."""


Space = dict[str, Range | dict[str, Values]]
"""A range, or options by their text, for each varied key; several keys that vary together are joined by `:`."""


@dataclass(frozen=True)
class TunePlan:
    """What tuning does; everything is checked."""

    command: str
    """The command line."""
    folder: Path
    base: RunConfig
    space: Space
    identity: dict[str, Any]
    """What must be the same for the study to go on."""
    trials: int
    """Trials in total, including those of other machines and of earlier commands."""
    seeds: Sequence[int]
    at_once: int
    """Trials at the same time."""

    @property
    def has_target(self) -> bool:
        """Whether scores are environment steps to a target, the fewer the better, and not returns."""
        return self.base.stop.at_return is not None

    def config(self, chosen: Mapping[str, Any]) -> RunConfig:
        """The run with the settings of a trial; raises `ConfigError` if they are not allowed together."""
        return override(self.base, settings(self.space, chosen))

    def jobs(self, number: int, config: RunConfig) -> list[Training]:
        """The run of each seed of trial `number`."""
        configs = (dataclasses.replace(config, seed=seed, out="") for seed in self.seeds)
        return [Training(self.folder, group(number), config) for config in configs]


def plan_tuning(
    base: RunConfig, arguments: Sequence[str], *, trials: int, seeds: int, vary: Sequence[str], at_once: int
) -> TunePlan:
    """The study of a command line, whose `arguments` begin with the run's name; raises `ConfigError`.

    `base` has the first of the `seeds` and the study's folder; `at_once` 0 means as many trials as the cores allow.
    """
    for key, value, least in (("trials", trials, 1), ("seeds", seeds, 1), ("jobs", at_once, 0)):
        require(value >= least, key, value, f"give {least} or more")
    every, budget = base.evaluation.every, base.stop.env_steps
    allowed = f"trials are compared by evaluations; give 1 or more, at most stop.env_steps ({budget})"
    require(0 < every <= budget, "evaluation.every", every, allowed)
    space = make_space(base, vary)
    check_before(corners(base, space))
    name, numbers = Path(arguments[0]).resolve().stem, range(base.seed, base.seed + seeds)
    return TunePlan(
        command=shlex.join(["apex-acer", "tune", *arguments]),
        folder=Path(base.out or f"studies/{name}-{time.strftime('%Y%m%d-%H%M%S')}"),
        base=base,
        space=space,
        identity={"run": without_out(base), "seeds": list(numbers), "vary": list(vary)},
        trials=trials,
        seeds=numbers,
        at_once=at_once or runs_at_once([base]),
    )


def make_space(base: RunConfig, vary: Sequence[str]) -> Space:
    """What the `--vary` flags allow; raises `ConfigError` for a wrong key or value.

    They are `KEY=LOW:HIGH`, `KEY=LOW:HIGH:log`, or what `sweep` takes: `KEY=V1,V2` and `K1:K2=V1:V2,W1:W2`.
    """
    require(bool(vary), "vary", "", RANGE)
    space: Space = {}
    for types, text in parse_flags(base, vary):
        for key in types:
            require(
                not key.startswith(NOT_TUNED), "vary", key, "trials are compared by it; give it as a flag of its own"
            )
        hints = list(types.values())
        is_number = len(hints) == 1 and bool({int, float} & {hints[0], *typing.get_args(hints[0])})
        if is_number and ":" in text:
            space.update({key: _range(key, hint, text) for key, hint in types.items()})
            continue
        options = text.split(",")
        require(len(set(options)) == len(options), "vary", text, "give each value once")
        space[":".join(types)] = {option: parse_values(types, option) for option in options}
    return space


def corners(base: RunConfig, space: Space) -> list[RunConfig]:
    """The run with every combination of ends of ranges and options, or 1,024 random ones if there are more.

    Raises `ConfigError` if one is not allowed.
    """
    ends = [
        [{key: allowed.low}, {key: allowed.high}] if isinstance(allowed, Range) else list(allowed.values())
        for key, allowed in space.items()
    ]
    if math.prod(map(len, ends)) <= MOST_CORNERS:
        every: Iterable[tuple[Values, ...]] = itertools.product(*ends)
    else:
        draw = random.Random(0)
        every = (tuple(map(draw.choice, ends)) for _ in range(MOST_CORNERS))
    return [override(base, {key: value for part in parts for key, value in part.items()}) for parts in every]


def settings(space: Space, chosen: Mapping[str, Any]) -> Values:
    """Values by dotted key, from the number or option that a trial has `chosen` for each key of `space`."""
    values: Values = {}
    for key, allowed in space.items():
        values |= {key: chosen[key]} if isinstance(allowed, Range) else allowed[chosen[key]]
    return values


def start(space: Space, base: RunConfig) -> dict[str, Any] | None:
    """What a trial of the run `base` as it is has chosen; None if one of its values is not in `space`."""
    chosen: dict[str, Any] = {}
    for key, allowed in space.items():
        if isinstance(allowed, Range):
            number = attrgetter(key)(base)
            fits = isinstance(number, int | float) and allowed.low <= number <= allowed.high
            chosen[key] = number if fits else None
        else:
            same = (
                text for text, values in allowed.items() if all(attrgetter(k)(base) == v for k, v in values.items())
            )
            chosen[key] = next(same, None)
    return None if None in chosen.values() else chosen


def _range(key: str, hint: Any, text: str) -> Range:
    parts, flag = text.split(":"), f"{key}={text}"
    require(len(parts) == 2 or parts[2:] == ["log"], "vary", flag, RANGE)
    low, high = (parse_value(key, hint, part) for part in parts[:2])
    are_numbers = all(isinstance(end, int | float) and math.isfinite(end) for end in (low, high))
    require(are_numbers, "vary", flag, "give finite numbers")
    require(low < high, "vary", flag, "give the lower end first")
    log = len(parts) == 3
    require(low > 0 or not log, "vary", flag, "a logarithmic range begins above 0")
    return Range(low, high, log)


def group(number: int) -> str:
    """The folder of a trial in the study's folder."""
    return f"trials/{number:04d}"
