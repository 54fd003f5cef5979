"""Draws a run's progress as a table that fits the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.filesize import decimal
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from apex_acer.protocol.messages import Row
from apex_acer.views.progress import Progress, clock, variety

NAME_WIDTH, BAR_WIDTH = 9, 30
NEWS_LINES = 3
TAIL_WIDTH = 10  # the least width of the last column, which takes the rest
BALANCE = 0.1  # smaller differences between two shares of waiting are ignored
LEVELS = "▁▂▃▄▅▆▇█"
STYLES = {"running": "green", "ended": "dim", "dead": "bold red"}
SPARK_STYLE = "cyan"


@dataclass(frozen=True)
class TableRow:
    """A row of the table: a process, or several summed up."""

    name: str
    state: str
    restarts: int
    row: Row
    last: float | None
    best: float | None
    returns: Sequence[float]
    remark: str = ""
    """Text to show instead of the returns."""

    def tail(self, width: int) -> str:
        """The remark, or the newest returns as a sparkline, in at most `width` cells."""
        return self.remark or sparkline(self.returns[-width:])


class Column(NamedTuple):
    """A column; if not all fit, those of the lowest `rank` are shown."""

    title: str
    width: int
    rank: int
    cell: Callable[[TableRow], str]


COLUMNS = (
    Column("", NAME_WIDTH, 0, lambda line: line.name),
    Column("state", 10, 0, lambda line: line.state),
    Column("restarts", 8, 5, lambda line: str(line.restarts)),
    Column("steps/s", 7, 1, lambda line: number(line.row.get("env_steps_per_s"), 0, 7)),
    Column("lag", 5, 6, lambda line: number(line.row.get("policy_lag"), 0, 5)),
    Column("waiting", 7, 4, lambda line: percent(line.row.get("time_waiting"))),
    Column("last", 8, 2, lambda line: number(line.last)),
    Column("best", 8, 3, lambda line: number(line.best)),
)


@dataclass(frozen=True)
class Screen:
    """A run's progress as a rich renderable that uses the rows and columns there are."""

    progress: Progress

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width, height = options.max_width, options.size.height
        below = [_learner(self.progress, width), _replay(self.progress, width), _waiting(self.progress, width)]
        evaluator = [name for name in ("evaluator",) if name in self.progress.states]
        room = height - 2 - len(evaluator) - len(below)  # 2: the bar and the titles
        kept = min(NEWS_LINES, room // 4)
        news = self.progress.news[-kept:] if kept > 0 else ()
        lines = _actor_lines(self.progress, room - len(news)) + [_line(self.progress, name) for name in evaluator]
        yield _bar(self.progress, width)
        yield _table(lines, width)
        yield from below
        yield from (_text(line, "yellow") for line in news)


# ── the table ──


def _table(lines: Iterable[TableRow], width: int) -> Table:
    columns = _fitting(width - TAIL_WIDTH)
    rest = width - sum(column.width + 1 for column in columns)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for column in columns:
        justify = "left" if column.title in ("", "state") else "right"
        table.add_column(column.title, justify=justify, width=column.width, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("returns", width=max(1, rest), no_wrap=True)
    for line in lines:
        style = _style(line.state)
        cells = [Text(column.cell(line), style if column.title == "state" else "") for column in columns]
        table.add_row(*cells, Text(line.tail(rest), style if line.remark else SPARK_STYLE))
    return table


def _style(state: str) -> str:
    return STYLES.get(state, "yellow") if state else "dim"


def _fitting(width: int) -> list[Column]:
    ranked = sorted(COLUMNS, key=lambda column: column.rank)
    ends = accumulate(column.width + 1 for column in ranked)
    chosen = [column for column, end in zip(ranked, ends, strict=True) if end <= width]
    return [column for column in COLUMNS if column in chosen]


def _actor_lines(progress: Progress, room: int) -> list[TableRow]:
    """A line per actor. If they exceed `room`, a line sums up the rest; actors that are not running are shown first."""
    names = [name for name in progress.states if name.startswith("actor_")]
    if len(names) <= room:
        return [_line(progress, name) for name in names]
    by_need = sorted(names, key=lambda name: progress.states[name] == "running")
    shown = set(by_need[: max(0, room - 1)])
    lines = [_line(progress, name) for name in names if name in shown]
    return [*lines, _sum([_line(progress, name) for name in names if name not in shown])]


def _line(progress: Progress, name: str) -> TableRow:
    state, _, why = progress.states[name].partition(": ")
    row, returns = progress.rows.get(name, {}), progress.returns.get(name, ())
    best = progress.best_evaluation if name == "evaluator" else progress.best.get(name)
    last = returns[-1] if returns else None
    return TableRow(name.replace("_", " "), state, progress.restarts.get(name, 0), row, last, best, returns, why)


def _sum(lines: list[TableRow]) -> TableRow:
    rows = [line.row for line in lines]
    row = {"env_steps_per_s": sum(_known(rows, "env_steps_per_s"))}
    row |= {name: fmean(values) for name in ("policy_lag", "time_waiting") if (values := _known(rows, name))}
    last = [line.last for line in lines if line.last is not None]
    best = [line.best for line in lines if line.best is not None]
    states = ", ".join(f"{count} {state}" for state, count in Counter(line.state for line in lines).items())
    restarts, mean = sum(line.restarts for line in lines), fmean(last) if last else None
    return TableRow(f"{len(lines)} more", "", restarts, row, mean, max(best, default=None), (), states)


# ── the lines around it ──


def _bar(progress: Progress, width: int) -> RenderableType:
    stop, left = progress.config.stop, progress.left_s
    if progress.states.get("learner") == "ended":
        until = "ended"
    else:
        at_most = "≤ " if stop.at_return is not None else ""
        until = "starting" if left is None else f"{at_most}{clock(left)} left"
    steps = f"{progress.env_steps:,} of {stop.env_steps:,} env steps"
    pace = [f"{progress.rate.per_second:,.0f} steps/s", f"{clock(progress.wall_s)} so far"]
    return _with_bar(progress.share, [f"{progress.share:4.0%}", until, steps, *pace], width)


def _learner(progress: Progress, width: int) -> RenderableType:
    row, restarts = progress.rows.get("learner", {}), progress.restarts.get("learner", 0)
    state, _, why = progress.states["learner"].partition(": ")
    parts = [f"{'learner':<{NAME_WIDTH}} {state}{f': {why}' if why else ''}"]
    parts += [f"{restarts} restart{'s' if restarts > 1 else ''}"] if restarts else []
    parts += [f"{number(row.get('updates'), 0)} updates, {number(row.get('updates_per_s'), 0)}/s"]
    parts += [f"{number(skipped, 0)} skipped"] if (skipped := row.get("skipped_updates")) else []
    metric, varies = variety(progress.rows)
    shown = {"Q loss": row.get("q_loss"), metric.replace("_", " "): varies, "loss": row.get("loss")}
    parts += [*(f"{title} {number(value, 3)}" for title, value in shown.items()), progress.device]
    return _text(_joined(parts, width), "" if state == "running" else _style(state))


def _replay(progress: Progress, width: int) -> RenderableType:
    held = progress.rows.get("learner", {}).get("replay_steps", 0.0)
    capacity = progress.config.replay.capacity
    memory = f"{decimal(progress.replay_memory)} when full" if progress.replay_memory else ""
    share = min(1.0, held / capacity)
    parts = [f"{share:4.0%}", f"{held:,.0f} of {capacity:,} steps", memory]
    return _with_bar(share, parts, width, "replay")


def _waiting(progress: Progress, width: int) -> RenderableType:
    actors = _known([row for name, row in progress.rows.items() if name.startswith("actor_")], "time_waiting")
    learner = progress.rows.get("learner", {}).get("time_waiting")
    mean = fmean(actors) if actors else None
    parts = [f"{'waiting':<{NAME_WIDTH}} actors {percent(mean)}, learner {percent(learner)}"]
    if mean is not None and learner is not None:
        parts.append(bottleneck(mean, learner))
    return _text(_joined(parts, width))


def bottleneck(actors: float, learner: float) -> str:
    """Which side is the bottleneck, given the shares of time that each side waits."""
    if abs(actors - learner) < BALANCE:
        return "in balance"
    return f"bottleneck: {'learner' if actors > learner else 'actors'}"


def _with_bar(share: float, parts: list[str], width: int, title: str = "") -> RenderableType:
    name = f"{title:<{NAME_WIDTH}}" if title else ""
    bar_width = max(1, min(BAR_WIDTH, width // 4))
    grid = Table.grid(padding=(0, 1, 0, 0))
    text = _joined(parts, width - bar_width - 1 - (len(name) + 1 if name else 0))
    bar = ProgressBar(1.0, share, width=bar_width, complete_style="cyan", finished_style="green")
    grid.add_row(*([name] if name else []), bar, _text(text))
    return grid


def _joined(parts: Iterable[str], width: int) -> str:
    """As many of the parts as fit `width` cells, but at least the first."""
    line, *others = (part for part in parts if part)
    for part in others:
        if cell_len(line) + 2 + cell_len(part) > width:
            break
        line += f"  {part}"
    return line


def _text(line: str, style: str = "") -> Text:
    return Text(line, style, no_wrap=True, overflow="ellipsis")


def _known(rows: Iterable[Mapping[str, float]], name: str) -> list[float]:
    return [row[name] for row in rows if name in row]


def number(value: float | None, digits: int = 1, width: int = 8) -> str:
    """A number as exact as `width` characters allow, or a dash for None."""
    if value is None:
        return "–"
    texts = [f"{value:{kind}}" for kind in (f",.{digits}f", ",.0f", ".2e", ".0e")]
    return next((text for text in texts if len(text) <= width), texts[-1])


def percent(share: float | None) -> str:
    """A share from 0 to 1 in per cent, or a dash for None."""
    return "–" if share is None else f"{share:.0%}"


def sparkline(values: Sequence[float]) -> str:
    """A bar for each value, scaled from the lowest to the highest; if all are equal, of medium height."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    if low == high:
        return LEVELS[3] * len(values)
    return "".join(LEVELS[round((value - low) / (high - low) * (len(LEVELS) - 1))] for value in values)
