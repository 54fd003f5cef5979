"""`apex-acer resume DIR [flags]`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from apex_acer import IMPORTED_AT
from apex_acer.cli.parsing import Flag, parse
from apex_acer.cli.train import finish


@dataclass(frozen=True)
class Resume:
    """Goes on with a run from its newest checkpoint, with the settings it had. DIR is the run's folder."""

    folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """A run's folder."""
    steps: int | None = None
    """Environment steps in total, those of before included; by default as many as the run was to make."""
    until: float | None = None
    """Mean return of one evaluation that ends it; by default the run's, unless it was reached."""
    minutes: float | None = None
    """Wall-clock minutes in total, those of before included."""
    schedule_steps: int | None = None
    """Environment steps at which schedules end, such as the learning rate's; by default where they ended before."""
    json: Flag = False
    """Print one JSON object as the last line of standard output, and progress on standard error."""


def run(arguments: list[str]) -> int:
    """Goes on; the exit code is the run's."""
    given = parse(Resume, arguments, "resume")
    asked = {"env_steps": given.steps, "at_return": given.until, "minutes": given.minutes}
    from apex_acer.manager import prepare_resume

    stop = {name: value for name, value in asked.items() if value is not None}
    folder = Path(given.folder).absolute()
    return finish(prepare_resume(folder, stop, IMPORTED_AT, schedule_steps=given.schedule_steps), given.json)
