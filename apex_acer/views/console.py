"""Shows a run while it trains: a live table on a terminal or in a notebook, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from rich.console import Console

from apex_acer.config import RunConfig
from apex_acer.protocol.messages import Outcome, Row, Status
from apex_acer.storage.history import last_rows
from apex_acer.system.output import is_read, printable, say
from apex_acer.views.progress import Progress, clients_in, describe_clients, variety
from apex_acer.views.screen import Screen
from apex_acer.views.terminal import Terminal

log = logging.getLogger(__name__)

PLAIN_EVERY_S = 5.0
CONCLUDE_S = 10.0  # for a reader that stands still to take the last lines
MOST_CLIENTS = 3  # in a plain line
NOTEBOOK_SIZE = 100, 40  # columns, and the most lines
NOTEBOOK_HTML = "<pre style=\"line-height:1.2;font-family:Menlo,'DejaVu Sans Mono',monospace\">{code}</pre>"
REASONS = {
    "env_steps": "the step budget is used up",
    "minutes": "the time budget is used up",
    "at_return": "the target return is reached",
    "SIGINT": "interrupted",
    "SIGTERM": "terminated",
    "SIGHUP": "the terminal was closed",
}


class View:
    """Collects the statuses of a run in `progress`; calls `show` with each status afterwards."""

    def __init__(self, config: RunConfig, show: Callable[[Status], None] = lambda status: None) -> None:
        self.progress = Progress.before(config)
        self.result: Outcome | None = None
        self._show = show
        self._status: Status | None = None

    def update(self, status: Status) -> None:
        """Shows a status, as `train(config, Callbacks(on_status=view.update))` does."""
        self.progress, self._status = self.progress.after(status), status
        self._show(status)

    def tell(self, line: str) -> None:
        """Shows a line of news."""
        if self._status:
            self.update({**self._status, "news": [line]})

    def conclude(self, result: Outcome) -> None:
        """Shows the end of the run; lines below the view will say how it ended and where its weights are."""
        written = last_rows(Path(result.folder) / "metrics.jsonl")
        self.progress, self.result = self.progress.ended(result, written), result


@contextlib.contextmanager
def live_view(config: RunConfig, stream: TextIO | None = None) -> Iterator[View]:
    """Shows a run while the context lasts; pass it statuses by `train(config, Callbacks(on_status=view.update))`.

    `stream` is standard output by default, or the output of a notebook's cell. On a terminal in the foreground the view is a
    live table; elsewhere, and if TERM is `dumb`, plain lines. NO_COLOR removes only the colours.
    """
    out = stream or sys.stdout
    console = Console(file=out)
    with contextlib.ExitStack() as stack:
        if stream is None and console.is_jupyter:
            from IPython.display import HTML, display  # rich's live display would need ipywidgets

            cell = display(HTML(""), display_id=True)
            view = View(config, lambda status: cell.update(HTML(as_html(view.progress))))
            stack.callback(lambda: cell.update(HTML(as_html(view.progress))))  # a saved notebook keeps this table
        elif out.isatty() and console.is_interactive and console.encoding.startswith("utf"):
            view = View(config)
            stack.enter_context(Terminal(console, lambda: Screen(view.progress)))
        else:
            view = View(config, PlainLines(config, out).show)
        yield view
    if view.result and is_read(out, CONCLUDE_S):
        say("\n".join(_conclusion(view.result)), out)


def as_html(progress: Progress) -> str:
    """The table as HTML for a notebook."""
    return recorded(progress, *NOTEBOOK_SIZE).export_html(code_format=NOTEBOOK_HTML, inline_styles=True)


def recorded(progress: Progress, width: int, height: int) -> Console:
    """A console that has printed the table in `width` columns and at most `height` lines, for export."""
    console = Console(
        record=True, file=io.StringIO(), width=width, height=height, force_terminal=True, force_jupyter=False
    )
    console.print(Screen(progress))
    return console


class PlainLines:
    """Prints a line about a run every 5 s, and a line for each piece of news."""

    def __init__(self, config: RunConfig, stream: TextIO) -> None:
        self._config, self._stream = config, stream
        self._is_read = True
        self._printed_at = time.monotonic() - PLAIN_EVERY_S + 1.0  # the first comes after a second

    def show(self, status: Status) -> None:
        """Prints the lines that are due, unless the reader has gone or stands still: nobody must delay a run."""
        lines = [printable(line) for line in status["news"]]
        if time.monotonic() - self._printed_at >= PLAIN_EVERY_S:
            self._printed_at = time.monotonic()
            lines.append(self._line(status))
        if lines and self._is_read and is_read(self._stream, 0) and not say("\n".join(lines), self._stream):
            self._is_read = False
            log.info("nobody reads the progress any more; training continues")

    def _line(self, status: Status) -> str:
        steps, budget, rows = status["env_steps"], self._config.stop.env_steps, status["rows"]
        learner, evaluator = rows.get("learner", {}), rows.get("evaluator", {})
        processes = [row for name, row in rows.items() if name in status["states"]]
        rate = sum(row.get("env_steps_per_s", 0.0) for row in processes)
        returns = [row["episode_return"] for row in processes if "episode_return" in row]
        parts = [f"{steps:,}/{budget:,} steps", f"{rate:,.0f}/s"]
        parts += [_clients(row) for row in processes if "clients" in row]
        skipped = f", {number:,.0f} skipped" if (number := learner.get("skipped_updates")) else ""
        parts.append(f"{learner.get('updates', 0):,.0f} updates ({learner.get('updates_per_s', 0):,.0f}/s){skipped}")
        if returns:
            parts.append(f"return {sum(returns) / len(returns):.1f}")
        if "eval_return" in evaluator:
            best = "" if status["best"] is None else f" (best {status['best']:.1f})"  # none before it is confirmed
            parts.append(f"evaluation {evaluator['eval_return']:.1f}{best}")
        metric, varies = variety(rows)
        if varies is not None and "q_loss" in learner:
            parts.append(f"{metric.replace('_', ' ')} {varies:.3f}, Q loss {learner['q_loss']:.3g}")
        parts += describe_clients(clients_in(rows), MOST_CLIENTS)
        return " | ".join(parts)


def _conclusion(result: Outcome) -> list[str]:
    score = "" if result.eval_return is None else f", evaluation {result.eval_return:.2f}"
    reason = REASONS.get(result.reason, result.reason)
    counts = f"{result.env_steps:,} env steps, {result.updates:,} updates"
    times = f"{result.wall_s:.1f} s (start-up {result.startup_s:.1f} s)"
    lines = [f"{reason}: {counts} in {times}{score}", f"weights: {result.weights or 'not saved'}"]
    return [*lines, result.warning] if result.warning else lines


def _clients(row: Row) -> str:
    refused = f", {number:,.0f} refused" if (number := row.get("refused_clients")) else ""
    return f"{row['clients']:.0f} clients{refused}"
