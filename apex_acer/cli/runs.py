"""`apex-acer runs [FOLDER] [flags]`."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from apex_acer.cli.parsing import Flag, parse
from apex_acer.system.output import printable, say

if TYPE_CHECKING:
    from apex_acer.tools.runs import RunStatus

HEADS = ("name", "environment", "algorithm", "seed", "env steps", "best", "last", "wall", "age", "state")
TEXTS = ("name", "environment", "algorithm", "state")
FIRST = ("name", "state", "env steps", "best", "last", "wall", "age", "environment", "algorithm", "seed")
"""The columns in the order in which a terminal gives them room; the first two are always shown."""
STATE_WIDTH = 16  # columns that are kept for the state; a longer reason is cut before other columns are
UNITS = ((86400, "d"), (3600, "h"), (60, "min"))


@dataclass(frozen=True)
class Runs:
    """Lists the runs in a folder, newest output first."""

    folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[FOLDER]")] = "runs"
    """A folder of runs or of sweeps, or the folder of one run."""
    json: Flag = False
    """Print a JSON array with one object for each run."""


def run(arguments: list[str]) -> int:
    """Prints the table, or the JSON array."""
    given = parse(Runs, arguments, "runs")
    from apex_acer.tools.runs import list_runs

    found = list_runs(Path(given.folder))
    if given.json:
        print(json.dumps([dataclasses.asdict(run) for run in found]))
    elif found:
        _print_table(found)
    else:
        print(f"no runs in {given.folder}")
    return 0


def _print_table(runs: list[RunStatus]) -> None:
    """Prints all columns, or on a terminal those that fit a line; names are never cut."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = Console()
    rows = [dict(zip(HEADS, (Text(printable(cell)) for cell in _cells(run)), strict=True)) for run in runs]
    widths = {head: max(len(head), *(row[head].cell_len for row in rows)) for head in HEADS}
    width = terminal.width if terminal.is_terminal else sum(widths.values()) + len(HEADS)
    shown = _fitting(widths, width)
    others = sum(widths[head] + 1 for head in shown if head != "state")
    widths["state"] = max(min(widths["state"], width - others), *(len(run.state) + 1 for run in runs))
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for head in (head for head in HEADS if head in shown):
        table.add_column(head, justify="left" if head in TEXTS else "right", no_wrap=True, width=widths[head])
    for row in rows:
        table.add_row(*(row[head] for head in HEADS if head in shown))
    console = Console(width=others + widths["state"], markup=False, highlight=False, emoji=False)
    with console.capture() as printed:
        console.print(table)
    say(printed.get().rstrip("\n"))


def _fitting(widths: dict[str, int], room: int) -> Sequence[str]:
    needed = {**widths, "state": min(widths["state"], STATE_WIDTH)}
    taken = list(itertools.accumulate(needed[head] + 1 for head in FIRST))
    return FIRST[: max(2, sum(width - 1 <= room for width in taken))]


def _cells(run: RunStatus) -> list[str]:
    steps = f"{run.env_steps:,} / {_text(run.budget, ',')}"
    scores = [_text(run.best, ",.2f"), _text(run.last, ",.2f")]
    which = [run.name, _text(run.environment), _text(run.algorithm), _text(run.seed)]
    return [*which, steps, *scores, _duration(run.wall_s), _duration(run.age_s), _state(run)]


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
