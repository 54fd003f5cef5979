"""`apex-acer plot DIR... [flags]`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from apex_acer.cli.parsing import Flag, parse
from apex_acer.config import ConfigError
from apex_acer.config.imports import needs
from apex_acer.system.output import printable


@dataclass(frozen=True)
class Plot:
    """Draws what runs have logged. Several runs are compared; runs that differ only in their seed are one line.

    That line is their median between quartiles, up to the end of the shortest; the runs are thin lines behind it.
    """

    folders: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="DIR...", help_behavior_hint="")]
    """Folders of runs, of sweeps, or of any number of runs."""
    out: str = ""
    """Folder of the figures; by default `plots/` in the folder given, or in the current one if several are given."""
    svg: Flag = False
    """Write SVG files instead of PNG."""


def run(arguments: list[str]) -> int:
    """Draws the figures and prints their paths."""
    given = parse(Plot, arguments, "plot")
    with needs("plot", "plot"):
        from apex_acer.views.plots import plot_runs
    runs = [run for folder in given.folders for run in runs_of(Path(folder))]
    out = given.out or Path(given.folders[0] if len(given.folders) == 1 else "", "plots")
    for path in plot_runs(runs, out, "svg" if given.svg else "png"):
        print(printable(str(path)))
    return 0


def runs_of(folder: Path) -> list[Path]:
    """The run in `folder`, or else the runs below it; raises `ConfigError` if there are none."""
    from apex_acer.tools.runs import find_runs

    found = [folder] if (folder / "config.toml").is_file() else sorted(find_runs(folder))
    if not found:
        raise ConfigError(f"plot: {str(folder)!r} holds no run; give the folder of a run, of a sweep or of runs")
    return found
