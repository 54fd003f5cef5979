"""The verbs that show what is there: `apex-acer runs`, `plot`, `dashboard` and `presets`."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from apex_acer.cli.flags import place
from apex_acer.cli.parsing import parse
from apex_acer.config import ConfigError, require
from apex_acer.config.runfile import preset_text
from apex_acer.config.runfile import presets as all_presets
from apex_acer.system.imports import needs
from apex_acer.system.output import printable, say
from apex_acer.views.progress import clock

if TYPE_CHECKING:
    from apex_acer.tools.runs import RunStatus

RANKED = ("name", "state", "env steps", "best", "last", "wall", "age", "environment", "algorithm", "seed")
"""The columns in the order in which a terminal gives them room; the first two are always shown."""
NUMBERS = ("seed", "env steps", "best", "last", "wall", "age")
STATE_WIDTH = 16  # columns that are kept for the state; a longer reason is cut before other columns are


@dataclass(frozen=True)
class Runs:
    """Lists the runs in a folder, newest output first."""

    folder: str = place("[FOLDER]", "runs")
    """A folder of runs or of sweeps, or the folder of one run."""
    json: bool = False
    """Print a JSON array with one object for each run."""


def runs(arguments: list[str]) -> int:
    """Prints the table, or the JSON array."""
    options = parse(Runs, arguments)
    from apex_acer.tools.runs import list_runs

    listed = list_runs(Path(options.folder))
    if options.json:
        print(json.dumps([dataclasses.asdict(run) for run in listed]))
    elif listed:
        _print_table(listed)
    else:
        print(f"no runs in {options.folder}")
    return 0


def _print_table(runs: list[RunStatus]) -> None:
    """Prints all columns, or on a terminal those that fit a line; names are never cut."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = Console()
    rows = [{head: Text(printable(cell)) for head, cell in _cells(run).items()} for run in runs]
    widths = {head: max(len(head), *(row[head].cell_len for row in rows)) for head in RANKED}
    width = terminal.width if terminal.is_terminal else sum(widths.values()) + len(widths)
    ends = itertools.accumulate({**widths, "state": min(widths["state"], STATE_WIDTH)}[head] + 1 for head in RANKED)
    shown = RANKED[: max(2, sum(end - 1 <= width for end in ends))]
    others = sum(widths[head] + 1 for head in shown if head != "state")
    widths["state"] = max(min(widths["state"], width - others), *(len(run.state) + 1 for run in runs))
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for head in (head for head in rows[0] if head in shown):
        table.add_column(head, justify="right" if head in NUMBERS else "left", no_wrap=True, width=widths[head])
    for row in rows:
        table.add_row(*(cell for head, cell in row.items() if head in shown))
    console = Console(width=others + widths["state"], markup=False, highlight=False, emoji=False)
    with console.capture() as printed:
        console.print(table)
    say(printed.get().rstrip("\n"))


def _cells(run: RunStatus) -> dict[str, str]:
    """The texts of a row by column."""
    lacks = not run.checkpoint and run.state not in ("running", "ended")
    notes = [note for note in (run.note, "no checkpoint" if lacks else "") if note]
    return {
        "name": run.name,
        "environment": _text(run.environment),
        "algorithm": _text(run.algorithm),
        "seed": _text(run.seed),
        "env steps": f"{run.env_steps:,} / {_text(run.budget, ',')}",
        "best": _text(run.best, ",.2f"),
        "last": _text(run.last, ",.2f"),
        "wall": clock(run.wall_s),
        "age": clock(run.age_s),
        "state": f"{run.state}: {'; '.join(notes)}" if notes else run.state,
    }


def _text(value: object, form: str = "") -> str:
    return "–" if value is None else format(value, form)


@dataclass(frozen=True)
class Plot:
    """Draws the metrics of runs. Runs that differ only in their seed are one line: their median between quartiles, up to
    the end of the shortest.
    """

    folders: tuple[str, ...] = place("DIR...")
    """Folders of runs, of sweeps, or of any number of runs."""
    out: str = ""
    """Folder of the figures; by default `plots/` in DIR, or in the current folder if there are several DIR."""
    svg: bool = False
    """Write SVG files instead of PNG."""


def plot(arguments: list[str]) -> int:
    """Draws the figures and prints their paths."""
    options = parse(Plot, arguments)
    with needs("plot", "plot"):
        from apex_acer.views.plots import plot_runs
    folders = [run for folder in options.folders for run in _runs_of(Path(folder))]
    out = options.out or Path(options.folders[0] if len(options.folders) == 1 else "", "plots")
    for path in plot_runs(folders, out, "svg" if options.svg else "png"):
        print(printable(str(path)))
    return 0


def _runs_of(folder: Path) -> list[Path]:
    """The run in `folder`, or else the runs below it; raises `ConfigError` if there are none."""
    from apex_acer.tools.runs import find_runs

    folders = [folder] if (folder / "config.toml").is_file() else sorted(find_runs(folder))
    if not folders:
        raise ConfigError(f"plot: {str(folder)!r} holds no run; give the folder of a run, of a sweep or of runs")
    return folders


@dataclass(frozen=True)
class Dashboard:
    """Shows a run or a folder of runs in TensorBoard on 127.0.0.1, even while they train. Ctrl-C ends it."""

    folder: str = place("DIR")
    """The folder of a run, or a folder of runs."""
    port: int | None = None
    """Port of the page; by default 6006 or the next free port; 0: any free port."""


def dashboard(arguments: list[str]) -> int:
    """Prints the address and serves until Ctrl-C."""
    options = parse(Dashboard, arguments)
    require(options.port is None or 0 <= options.port < 2**16, "port", options.port, "give 0 to 65535")
    folder = Path(options.folder)
    has_events = next(folder.rglob("*.tfevents.*"), None) is not None
    require(has_events, "dashboard", options.folder, "give the folder of a run, or a folder of runs")
    tb = folder / "tb"
    print(f"{_start_board(tb if tb.is_dir() else folder, options.port)}#custom_scalars  (Ctrl-C ends it)", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()
    return 0


def _start_board(folder: Path, port: int | None) -> str:
    """Starts TensorBoard for `folder` until this process ends; returns its address.

    Raises `ConfigError` if `port` cannot be used or TensorBoard is not installed.
    """
    with needs("dashboard", "dashboard"):
        from tensorboard import program
    board = program.TensorBoard()
    board.configure(argv=("", "--logdir", str(folder), "--host", "127.0.0.1"), port=port)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # its messages name its own options
            return str(board.launch())
    except program.TensorBoardPortInUseError:
        raise ConfigError(f"port: {port} is in use; give another port, or none for the next free one") from None
    except program.TensorBoardServerException as error:
        raise ConfigError(f"port: {error.msg}") from None


@dataclass(frozen=True)
class Presets:
    """Lists the run files to start from, or prints one."""

    words: tuple[str, ...] = place("show NAME", ())
    """Print the run file NAME."""


def presets(arguments: list[str]) -> int:
    """Prints the table of presets, or the run file of one."""
    words = parse(Presets, arguments).words
    if not words:
        for name, description in all_presets().items():
            print(f"{name:<22} {description}")
        return 0
    require(len(words) == 2 and words[0] == "show", "presets", " ".join(words), "give nothing, or: show NAME")
    print(preset_text(words[1]), end="")
    return 0
