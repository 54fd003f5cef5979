"""Draws a run's progress as a table that fits the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType
from rich.filesize import decimal
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from apex_acer.protocol.metrics import CLIENT
from apex_acer.views.progress import Progress, clock, variety

NAME_WIDTH, BAR_WIDTH = 9, 30
LONGEST_NAME = 24  # columns of a client's name
NEWS_LINES = 3
TAIL_WIDTH = 10  # the least width of the last column, which takes the rest
BALANCE = 0.1  # smaller differences between two shares of waiting are ignored
LEVELS = "▁▂▃▄▅▆▇█"
STYLES = {"running": "green", "ended": "dim", "dead": "bold red"}
SPARK_STYLE = "cyan"


COLUMNS = {  # width by title, in the order in which they stand
    "": NAME_WIDTH,
    "state": 10,
    "restarts": 8,
    "steps/s": 7,
    "lag": 5,
    "waiting": 7,
    "last": 8,
    "best": 8,
}
OF_CLIENTS = {
    "": "client",
    "state": "agents",
    "restarts": "refused",
    "lag": "",
    "waiting": "",
}  # titles of clients' cells
RANKED = "", "state", "steps/s", "last", "best", "waiting", "restarts", "lag"  # columns in the order of importance


@dataclass(frozen=True)
class Screen:
    """A run's progress as a rich renderable that fits the console."""

    progress: Progress

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width, height = options.max_width, options.size.height
        below = [_learner(self.progress, width), _replay(self.progress, width), _waiting(self.progress, width)]
        room = height - 2 - ("evaluator" in self.progress.states) - len(below)  # 2: the bar and the titles
        kept = min(NEWS_LINES, room // 4)
        news = self.progress.news[-kept:] if kept > 0 else ()
        yield _bar(self.progress, width)
        yield _table(self.progress, room - len(news), width)
        yield from below
        yield from (_text(line, "yellow") for line in news)


# ── the table ──


def _table(progress: Progress, room: int, width: int) -> Table:
    """The columns that fit `width`, and at most `room` rows for actors."""
    ends = accumulate(COLUMNS[title] + 1 for title in RANKED)
    shown = {title for title, end in zip(RANKED, ends, strict=True) if end <= width - TAIL_WIDTH}
    rest = width - sum(COLUMNS[title] + 1 for title in shown)
    longest = max((len(name) for name in progress.clients), default=0)
    wider = max(0, min(longest, LONGEST_NAME, NAME_WIDTH + rest - TAIL_WIDTH) - NAME_WIDTH)
    rest -= wider
    titles = [title for title in COLUMNS if title in shown]
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for title in titles:
        justify: JustifyMethod = "left" if title in ("", "state") else "right"
        table.add_column(title, justify=justify, width=COLUMNS[title] + (0 if title else wider), no_wrap=True)
    table.add_column("returns", width=max(1, rest), no_wrap=True)
    processes = _rows(progress, room)
    for names in processes:
        cells = _cells(progress, names)
        state, _, why = progress.states[names[0]].partition(": ")
        returns = sparkline(progress.returns.get(names[0], ())[-rest:])
        tail = Text(why, _style(state)) if why else Text(returns, SPARK_STYLE)
        if len(names) > 1:
            states = Counter(progress.states[name].partition(": ")[0] for name in names)
            tail = Text(", ".join(f"{count} {each}" for each, count in states.items()), "dim")
        else:
            cells |= {"": names[0].replace("_", " "), "state": state}
        table.add_row(*(Text(cells[title], _style(state) if title == "state" else "") for title in titles), tail)
    _add_clients(table, titles, progress, room - sum(names != ["evaluator"] for names in processes), rest)
    return table


def _add_clients(table: Table, titles: Sequence[str], progress: Progress, room: int, rest: int) -> None:
    """Adds titles and a row for each client or, if they need more `room`, for the busiest and for all others together."""
    clients = progress.clients
    if not clients or room < 2:
        return
    by_rate = sorted(clients, key=lambda name: -clients[name].get("env_steps_per_s", -1.0))
    shown = clients.keys() if len(clients) < room else set(by_rate[: room - 2])
    others = [name for name in clients if name not in shown]
    table.add_row(*(OF_CLIENTS.get(title, title) for title in titles), "returns", style="bold")
    for names in [[name] for name in clients if name in shown] + ([others] if others else []):
        sources, rows = [f"{CLIENT}_{name}" for name in names], [clients[name] for name in names]
        cells = _cells(progress, sources) | {"lag": "", "waiting": ""}
        agents, refused = _known(rows, "clients"), _known(rows, "refused_clients")
        cells |= {"state": number(sum(agents) if agents else None, 0), "restarts": number(sum(refused), 0)}
        cells |= {} if names == others else {"": names[0]}
        returns = () if names == others else progress.returns.get(sources[0], ())
        table.add_row(*(cells[title] for title in titles), Text(sparkline(returns[-rest:]), SPARK_STYLE))


def _style(state: str) -> str:
    return STYLES.get(state, "yellow")


def _rows(progress: Progress, room: int) -> list[list[str]]:
    """The processes of each row: one, or the actors beyond `room`; actors that are not running come first."""
    actors = [name for name in progress.states if name.startswith("actor_")]
    others = [[name] for name in progress.states if name == "evaluator"]
    if len(actors) <= room:
        return [[name] for name in actors] + others
    by_need = sorted(actors, key=lambda name: progress.states[name] == "running")
    shown = set(by_need[: max(0, room - 1)])
    return [[name] for name in actors if name in shown] + [[name for name in actors if name not in shown]] + others


def _cells(progress: Progress, names: list[str]) -> dict[str, str]:
    """The texts by column for processes together: sums of rates and restarts, means, and the best return."""
    rows = [progress.rows.get(name, {}) for name in names]
    rates = _known(rows, "env_steps_per_s")
    last = [returns[-1] for name in names if (returns := progress.returns.get(name))]
    bests = (progress.best_evaluation if name == "evaluator" else progress.best.get(name) for name in names)
    return {
        "": f"{len(names)} more",
        "state": "",
        "restarts": str(sum(progress.restarts.get(name, 0) for name in names)),
        "steps/s": number(sum(rates) if rates else None, 0, 7),
        "lag": number(_mean(_known(rows, "policy_lag")), 0, 5),
        "waiting": percent(_mean(_known(rows, "time_waiting"))),
        "last": number(_mean(last)),
        "best": number(max((best for best in bests if best is not None), default=None)),
    }


# ── the lines around it ──


def _bar(progress: Progress, width: int) -> RenderableType:
    stop, left = progress.config.stop, progress.left_s
    if progress.states.get("learner") == "ended":
        until = "ended"
    else:
        at_most = "≤ " if stop.at_return is not None else ""
        until = "starting" if left is None else f"{at_most}{clock(left)} left"
    steps = f"{progress.env_steps:,} of {stop.env_steps:,} env steps"
    pace = [f"{progress.steps_per_s:,.0f} steps/s", f"{clock(progress.wall_s)} so far"]
    return _with_bar(progress.share, [f"{progress.share:4.0%}", until, steps, *pace], width)


def _learner(progress: Progress, width: int) -> RenderableType:
    row, restarts = progress.rows.get("learner", {}), progress.restarts.get("learner", 0)
    state, _, why = progress.states["learner"].partition(": ")
    parts = [f"{'learner':<{NAME_WIDTH}} {state}{f': {why}' if why else ''}"]
    parts += [f"restarts {restarts}"] if restarts else []
    parts += [f"{number(row.get('updates'), 0)} updates, {number(row.get('updates_per_s'), 0)}/s"]
    parts += [f"{number(skipped, 0)} skipped"] if (skipped := row.get("skipped_updates")) else []
    metric, varies = variety(progress.rows)
    shown = {"Q loss": row.get("q_loss"), metric.replace("_", " "): varies, "loss": row.get("loss")}
    parts += [*(f"{title} {number(value, 3)}" for title, value in shown.items()), progress.device]
    return _text(_joined(parts, width), "" if state == "running" else _style(state))


def _replay(progress: Progress, width: int) -> RenderableType:
    stored = progress.rows.get("learner", {}).get("replay_steps", 0.0)
    capacity = progress.config.replay.capacity
    memory = f"{decimal(progress.replay_memory)} when full" if progress.replay_memory else ""
    share = min(1.0, stored / capacity)
    parts = [f"{share:4.0%}", f"{stored:,.0f} of {capacity:,} steps", memory]
    return _with_bar(share, parts, width, "replay")


def _waiting(progress: Progress, width: int) -> RenderableType:
    actors = _known([row for name, row in progress.rows.items() if name.startswith("actor_")], "time_waiting")
    learner = progress.rows.get("learner", {}).get("time_waiting")
    mean = _mean(actors)
    parts = [f"{'waiting':<{NAME_WIDTH}} actors {percent(mean)}, learner {percent(learner)}"]
    if mean is not None and learner is not None:
        parts.append(bottleneck(mean, learner))
    return _text(_joined(parts, width))


def bottleneck(actors: float, learner: float) -> str:
    """The side that is the bottleneck, from the share of time that each side waits."""
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
    """The first parts that fit `width` cells together, at least one."""
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


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


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
