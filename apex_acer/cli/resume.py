"""`apex-acer resume DIR [flags]`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from apex_acer import IMPORTED_AT
from apex_acer.cli.parsing import parse
from apex_acer.cli.train import Output, finish
from apex_acer.config import LogLevel
from apex_acer.config.runfile import load_run

Same = Literal["same"]


@dataclass(frozen=True)
class Resume:
    """Continues a run from its newest checkpoint, with its own settings. DIR is the run's folder."""

    folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
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
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)


def run(arguments: list[str]) -> int:
    """Continues the run; returns its exit code."""
    given = parse(Resume, arguments, "resume")
    from apex_acer.manager.preparation import prepare_resume

    asked: dict[str, Any] = {"env_steps": "same" if given.steps is None else given.steps}
    asked |= {"at_return": given.until, "minutes": given.minutes}
    stop = {name: value for name, value in asked.items() if value != "same"}
    folder = Path(given.folder).absolute()
    run = prepare_resume(folder, stop, IMPORTED_AT, schedule_steps=given.schedule_steps)
    if given.log_level:
        run = dataclasses.replace(run, config=load_run(run.config, logging={"level": given.log_level}))
    return finish(run, given.output)
