"""What a user watches while a run trains: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from apex_acer.config import RunConfig
from apex_acer.messages import Row
from apex_acer.placement import describe
from apex_acer.result import TrainResult

PLAIN_EVERY_S = 5.0
REASONS = {
    "env_steps": "the step budget is used up",
    "minutes": "the time budget is used up",
    "at_return": "the target return is reached",
    "SIGINT": "interrupted",
    "SIGTERM": "terminated",
}


class View:
    """Shows the statuses it is given."""

    def __init__(self, config: RunConfig, stream: TextIO, live: Live | None) -> None:
        self._config, self._stream, self._live = config, stream, live
        self._best: dict[str, float] = {}
        self._printed_at = time.monotonic() - PLAIN_EVERY_S + 1.0  # the first plain line comes after a second

    def update(self, status: dict[str, Any]) -> None:
        """Shows a status of the learner (`Learner.status`)."""
        for name, row in status["rows"].items():
            if "episode_return_max" in row:
                self._best[name] = max(self._best.get(name, -float("inf")), row["episode_return_max"])
        if self._live:
            self._live.update(self._render(status))
        elif time.monotonic() - self._printed_at >= PLAIN_EVERY_S:
            self._printed_at = time.monotonic()
            print(self._line(status), file=self._stream, flush=True)

    def conclude(self, result: TrainResult) -> None:
        """Prints how the run ended and where its weights are."""
        score = "" if result.eval_return is None else f", evaluation {result.eval_return:.2f}"
        reason = REASONS.get(result.reason, result.reason)
        counts = f"{result.env_steps:,} env steps, {result.updates:,} updates"
        times = f"{result.wall_s:.1f} s (start-up {result.startup_s:.1f} s)"
        lines = [f"{reason}: {counts} in {times}{score}", f"weights: {result.weights or 'not saved'}"]
        print("\n".join(lines), file=self._stream, flush=True)

    def _rate(self, status: dict[str, Any]) -> float:
        actors = (row for name, row in status["rows"].items() if name.startswith("actor"))
        return float(sum(row.get("env_steps_per_s", 0.0) for row in actors))

    def _line(self, status: dict[str, Any]) -> str:
        steps, budget = status["env_steps"], self._config.stop.env_steps
        rows = status["rows"]
        learner, evaluator = rows.get("learner", {}), rows.get("evaluator", {})
        returns = [row["episode_return"] for row in rows.values() if "episode_return" in row]
        parts = [f"{steps:,}/{budget:,} steps", f"{self._rate(status):,.0f}/s"]
        parts.append(f"{learner.get('updates', 0):,.0f} updates ({learner.get('updates_per_s', 0):,.0f}/s)")
        if returns:
            parts.append(f"return {sum(returns) / len(returns):.1f}")
        if "eval_return" in evaluator:
            parts.append(f"evaluation {evaluator['eval_return']:.1f} (best {status['best']:.1f})")
        if "entropy" in learner:
            parts.append(f"entropy {learner['entropy']:.3f}, Q loss {learner['q_loss']:.3g}")
        return " | ".join(parts)

    def _render(self, status: dict[str, Any]) -> RenderableType:
        steps, budget, rate = status["env_steps"], self._config.stop.env_steps, self._rate(status)
        bar = Table.grid(padding=(0, 1))
        left = f"{max(0.0, budget - steps) / rate:,.0f} s left" if rate else "starting"
        elapsed = f"{status['wall_s']:,.0f} s"
        bar.add_row(
            ProgressBar(budget, min(steps, budget), width=30), f"{steps:,}/{budget:,} env steps", elapsed, f"≤ {left}"
        )
        return Group(bar, self._actors(status["rows"]), self._learner(status))

    def _actors(self, rows: dict[str, Row]) -> Table:
        table = Table(box=None, pad_edge=False)
        for column in ("", "steps/s", "last return", "best return", "policy lag", "waiting"):
            table.add_column(column, justify="right" if column else "left", no_wrap=True)
        for index in range(self._config.actors.count):
            name = f"actor_{index}"
            row = rows.get(name, {})
            table.add_row(
                f"actor {index}",
                _figure(row.get("env_steps_per_s"), 0),
                _figure(row.get("episode_return")),
                _figure(self._best.get(name)),
                _figure(row.get("policy_lag"), 0),
                f"{row.get('time_waiting', 0):.0%}",
            )
        return table

    def _learner(self, status: dict[str, Any]) -> Text:
        row, evaluator = status["rows"].get("learner", {}), status["rows"].get("evaluator", {})
        parts = [
            f"learner ({status['learner']})  {row.get('updates_per_s', 0):,.0f} updates/s",
            f"waiting {row.get('time_waiting', 0):.0%}",
            f"entropy {_figure(row.get('entropy'), 3)}",
            f"Q loss {_figure(row.get('q_loss'), 3)}",
            f"replay {row.get('replay_steps', 0):,.0f} steps",
        ]
        lines = ["   ".join(parts)]
        if "eval_return" in evaluator:
            spread = f"{evaluator['eval_return_min']:.1f} to {evaluator['eval_return_max']:.1f}"
            lines.append(f"evaluation  {evaluator['eval_return']:.2f} ({spread})   best {status['best']:.2f}")
        return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")


@contextlib.contextmanager
def live_view(config: RunConfig, stream: TextIO) -> Iterator[View]:
    """A view on `stream`, after a line on what the run uses: live where it is a terminal, plain lines elsewhere."""
    console = Console(file=stream)
    print(describe(config), file=stream, flush=True)
    if not console.is_terminal:
        yield View(config, stream, None)
        return
    with Live(
        Text("starting"), console=console, refresh_per_second=4, redirect_stdout=False, redirect_stderr=False
    ) as live:
        yield View(config, stream, live)


def _figure(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"
