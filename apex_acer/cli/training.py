"""The verbs that train: `apex-acer train`, `resume`, `sweep` and `tune`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from apex_acer import IMPORTED_AT
from apex_acer.cli.flags import place, repeated
from apex_acer.cli.notice import EXIT_FAILED, PROGRAM
from apex_acer.cli.parsing import parse
from apex_acer.config import LogLevel, RunConfig
from apex_acer.config.runfile import load_run
from apex_acer.system.imports import needs

if TYPE_CHECKING:
    from apex_acer.engines.engine import Run

Same = Literal["same"]


@dataclass(frozen=True)
class Output:
    """What a run prints."""

    json: bool = False
    """Print one JSON object last. Progress goes to standard error."""
    quiet: bool = False
    """Print only errors and the JSON object."""


@dataclass(frozen=True)
class Train:
    """Trains an agent. RUN, given first, is a preset (`apex-acer presets`) or a TOML file; flags override its keys."""

    config: RunConfig
    output: Output = field(default_factory=Output)


def train(arguments: list[str]) -> int:
    """Trains; returns the run's exit code."""
    config, output = parse_train(arguments)
    from apex_acer.manager.preparation import prepare

    return finish(prepare(config, IMPORTED_AT), output)


def parse_train(arguments: list[str]) -> tuple[RunConfig, Output]:
    """The configuration that the arguments of `train` describe, and what to print."""
    parsed = parse(Train, arguments)
    return parsed.config, parsed.output


@dataclass(frozen=True)
class Resume:
    """Continues a run from its newest checkpoint, with its own settings. DIR is the run's folder."""

    folder: str = place("DIR")
    """The folder of a run."""
    steps: int | None = None
    """Environment steps in total, including those already made; by default the run's."""
    until: float | Same | None = "same"
    """Mean return of one evaluation that ends the run; `same`: the run's, unless it was reached; None: no target."""
    minutes: float | Same | None = "same"
    """Wall-clock minutes in total, including those already used; `same`: the run's; None: no limit."""
    schedule_steps: int | None = None
    """Environment steps at which schedules end, such as the learning rate's; by default the run's."""
    log_level: LogLevel | None = None
    """Lowest level of the lines in log.txt; by default the run's."""
    output: Output = field(default_factory=Output)


def resume(arguments: list[str]) -> int:
    """Continues the run; returns its exit code."""
    options = parse(Resume, arguments)
    from apex_acer.manager.preparation import prepare_resume

    asked: dict[str, Any] = {"env_steps": "same" if options.steps is None else options.steps}
    asked |= {"at_return": options.until, "minutes": options.minutes}
    stop = {name: value for name, value in asked.items() if value != "same"}
    folder = Path(options.folder).absolute()
    run = prepare_resume(folder, stop, IMPORTED_AT, schedule_steps=options.schedule_steps)
    if options.log_level:
        run = dataclasses.replace(run, config=load_run(run.config, logging={"level": options.log_level}))
    return finish(run, options.output)


def finish(run: Run, output: Output) -> int:
    """Trains a prepared run to its end, with a live view unless `output.quiet`; returns the exit code."""
    from apex_acer.manager.manager import RunFailed, manage, watch
    from apex_acer.system.output import say

    # standard output belongs to the result: the serial engine's environments print in this process
    printed = contextlib.redirect_stdout(sys.stderr) if output.json else contextlib.nullcontext()
    try:
        with printed:
            result = manage(run) if output.quiet else watch(run, stream=sys.stdout)
    except RunFailed as error:
        say(f"{error}\n{PROGRAM}: the run failed; the lines above say where", sys.stderr)
        return EXIT_FAILED
    if output.quiet and result.exit_code == EXIT_FAILED:
        say(f"{PROGRAM}: {result.warning}", sys.stderr)
    if output.json:
        say(json.dumps(dataclasses.asdict(result)))
    return result.exit_code


@dataclass(frozen=True)
class Sweep:
    """Trains seeds of variants of a run. RUN and its keys are as for `train`; a sweep in `--out` is continued."""

    config: RunConfig
    seeds: int = 5
    """Seeds of each variant, counted from `--seed`."""
    vary: tuple[str, ...] = repeated("KEY=V1,V2")
    """Values of a key; several make a grid. 64+64 is a tuple, K1:K2=V1:V2,W1:W2 sets two keys together."""
    jobs: int = 0
    """Runs at the same time; 0: as the cores allow. That is one per core with the serial engine, else half as many."""
    final_episodes: int = 0
    """Fresh episodes per finished run; 0: none. They are played with its weights."""


def sweep(arguments: list[str]) -> int:
    """Trains the variants; returns the sweep's exit code."""
    options = parse(Sweep, arguments)
    with needs("sweep", "sweep"):
        from apex_acer.tools.sweep.sweep import plan_sweep, run_sweep
    plan = plan_sweep(
        options.config,
        arguments,
        seeds=options.seeds,
        vary=options.vary,
        at_once=options.jobs,
        final_episodes=options.final_episodes,
    )
    return run_sweep(plan)


@dataclass(frozen=True)
class Tune:
    """Looks for a better setting of a run. RUN and its keys are as for `train`; a study in `--out` is continued."""

    config: RunConfig
    trials: int = 50
    """Settings to try in total. Those of other machines and of earlier commands on the same study count."""
    seeds: int = 3
    """Seeds per setting, counted from `--seed`."""
    vary: tuple[str, ...] = repeated("KEY=LOW:HIGH")
    """Range of a key. KEY=LOW:HIGH:log is a range on a logarithmic scale, KEY=V1,V2 some values, as for `sweep`."""
    jobs: int = 0
    """Runs at the same time; 0: as the cores allow. That is one per core with the serial engine, else half as many."""


def tune(arguments: list[str]) -> int:
    """Works on the study; returns its exit code."""
    options = parse(Tune, arguments)
    with needs("tune", "tune"):
        from apex_acer.tools.tune.plan import plan_tuning
        from apex_acer.tools.tune.tune import run_study
    plan = plan_tuning(
        options.config, arguments, trials=options.trials, seeds=options.seeds, vary=options.vary, at_once=options.jobs
    )
    return run_study(plan)
