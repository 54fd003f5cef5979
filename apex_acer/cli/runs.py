"""`apex-acer runs [FOLDER] [flags]`."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from apex_acer.cli.parsing import Flag, parse
from apex_acer.output import printable, say

if TYPE_CHECKING:
    from apex_acer.runs import RunStatus

HEADS = ("name", "environment", "algorithm", "seed", "env steps", "best", "last", "wall", "age", "state")
TEXTS = ("name", "environment", "algorithm", "state")
PLAIN_WIDTH = 1000  # where there is no terminal nothing is cut
UNITS = ((86400, "d"), (3600, "h"), (60, "min"))


@dataclass(frozen=True)
class Runs:
    """Lists the runs in a folder, those that wrote last first."""

    folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[FOLDER]")] = "runs"
    """A folder of runs, of sweeps, or of one run."""
    json: Flag = False
    """Print one JSON array, of an object for each run."""


def run(arguments: list[str]) -> int:
    """Prints the table, or the JSON array."""
    given = parse(Runs, arguments, "runs")
    from apex_acer.runs import list_runs

    found = list_runs(Path(given.folder))
    if given.json:
        print(json.dumps([dataclasses.asdict(run) for run in found]))
    elif found:
        _print_table(found)
    else:
        print(f"no runs in {given.folder}")
    return 0


def _print_table(runs: list[RunStatus]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for head in HEADS:
        table.add_column(head, justify="left" if head in TEXTS else "right", overflow="fold", no_wrap=head not in TEXTS)
    for run in runs:
        cells = map(printable, _cells(run))
        table.add_row(*cells, Text(printable(_state(run)), no_wrap=True, overflow="ellipsis"))
    with console.capture() as printed:
        console.print(table)
    say(printed.get().rstrip("\n"))


def _cells(run: RunStatus) -> list[str]:
    steps = f"{run.env_steps:,} / {_text(run.budget, ',')}"
    scores = [_text(run.best, ",.2f"), _text(run.last, ",.2f")]
    which = [run.name, _text(run.environment), _text(run.algorithm), _text(run.seed)]
    return [*which, steps, *scores, _duration(run.wall_s), _duration(run.age_s)]


def _state(run: RunStatus) -> str:
    lacks = not run.checkpoint and run.state not in ("running", "ended")
    notes = [note for note in (run.note, "no checkpoint" if lacks else "") if note]
    return f"{run.state}: {'; '.join(notes)}" if notes else run.state


def _text(value: object, form: str = "") -> str:
    return "–" if value is None else format(value, form)


def _duration(seconds: float) -> str:
    for unit, name in UNITS:
        if seconds >= unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds:.0f} s"
