"""`apex-acer plot DIR... [flags]`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from apex_acer.cli.parsing import Flag, parse
from apex_acer.imports import missing
from apex_acer.output import printable


@dataclass(frozen=True)
class Plot:
    """Draws what runs have logged. Several runs are compared; those that differ only in their seed are one line."""

    folders: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="DIR...", help_behavior_hint="")]
    """Folders of runs."""
    out: str = ""
    """Where the figures go; by default `plots/` in the folder of one run, for several in the current folder."""
    svg: Flag = False
    """Write SVG files, not PNG."""


def run(arguments: list[str]) -> int:
    """Draws and prints the paths."""
    given = parse(Plot, arguments, "plot")
    try:
        from apex_acer.plots import plot_runs
    except ModuleNotFoundError as error:
        raise missing("plot", "plot", error) from None
    for path in plot_runs(given.folders, given.out, "svg" if given.svg else "png"):
        print(printable(str(path)))
    return 0
