"""Learning curves, statistics, table and figure of runs with several seeds, none of which contains an absolute path.

Statistics follow rliable's conventions (Agarwal et al. 2021, arXiv 2108.13264).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from rich.console import Console
from rich.table import Table
from scipy import stats

from apex_acer.storage.history import Floats, read_rows
from apex_acer.system.files import write
from apex_acer.views.curves import Line, Panel, band, quartiles
from apex_acer.views.plots import plot_curves

CUT = 0.25  # share of the values that an interquartile mean leaves out at each end
CURVE_POINTS = 200  # at most, of the actors' returns in a run without evaluations
ABSOLUTE = re.compile(r"(?<![\w.:/~-])/(?:[^\s/'\"]+/)+")  # the folders of an absolute path
PLAIN_WIDTH = 160  # of a table if there is no terminal
SHORT_LIST = re.compile(r"\[\n[^\[\]{}]*\]")  # a JSON list without a list or dict in it
Data = dict[str, Any]
Points = list[list[float]]


def write_json(path: Path, data: Data) -> None:
    """Writes `data` without absolute paths, with each list of numbers on one line."""
    text = json.dumps(portable(data), indent=1, ensure_ascii=False, allow_nan=False)
    text = SHORT_LIST.sub(lambda match: f"[{' '.join(map(str.strip, match[0][1:-1].strip().splitlines()))}]", text)
    write(path, f"{text}\n".encode())


def as_text(shown: Table) -> str:
    """The lines of a table, which fit the terminal."""
    console = Console()
    console = Console(width=None if console.is_terminal else PLAIN_WIDTH)
    with console.capture() as printed:
        console.print(shown)
    return printed.get().rstrip("\n")


def portable(value: Any) -> Any:
    """`value` as JSON has it, with each absolute path cut down to its file name."""
    if isinstance(value, Mapping):
        return {key: portable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [portable(item) for item in value]
    return ABSOLUTE.sub("", value) if isinstance(value, str) else value


def read_curve(metrics: Path) -> tuple[str, Points]:
    """The learning curve in a run's `metrics.jsonl`: its source and its points `[env_steps, return, wall_s]`.

    The source is `evaluator`, with a point for each evaluation; without evaluations it is `actors`, with the means of
    consecutive rows, at most 200.
    """
    rows = read_rows(metrics)
    if evaluations := _points(rows, "evaluator", "eval_env_steps", "eval_return"):
        return "evaluator", evaluations
    actors = _points(rows, "actor_", "env_steps", "episode_return")
    parts = np.array_split(actors, min(len(actors), CURVE_POINTS)) if actors else []
    return "actors", [np.mean(part, axis=0).round(6).tolist() for part in parts]


def interquartile_mean(values: ArrayLike) -> float:
    """Mean of `values` `[N]`, N >= 1, without floor(N / 4) of them at each end."""
    return float(stats.trim_mean(_finite(values), CUT))


def bootstrap_interval(values: ArrayLike) -> tuple[float, float] | None:
    """The 95 % percentile bootstrap interval of the interquartile mean of `values` `[N]`; None if N is 1.

    This is rliable's stratified bootstrap for a single task.
    """
    scores = _finite(values)
    if len(scores) == 1:
        return None
    result = stats.bootstrap(
        (scores,),
        lambda sample, axis: stats.trim_mean(sample, CUT, axis=axis),
        n_resamples=10_000,
        confidence_level=0.95,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    low, high = result.confidence_interval
    return float(low), float(high)


def _finite(values: ArrayLike) -> Floats:
    scores = np.asarray(values, np.float64)
    if scores.ndim != 1 or scores.size == 0 or not np.isfinite(scores).all():
        raise ValueError(f"Require one or more finite values in one dimension, got {scores}")
    return scores


def summarise(runs: Iterable[Data], asked: int, has_target: bool) -> Data:
    """Statistics of a variant's finished runs, and their number; `reached` is the share that reached the target."""
    finished = [run for run in runs if "result" in run]
    results = [run["result"] for run in finished]
    reached = [result["reason"] == "at_return" for result in results]
    return {
        "finished": len(finished),
        "asked": asked,
        "reached": float(np.mean(reached)) if has_target and reached else None,
        "env_steps": _spread([result["env_steps"] for result in results]),
        "wall_s": _spread([result["wall_s"] for result in results]),
        "eval_return": _estimate([r["eval_return"] for r in results if r["eval_return"] is not None]),
        "final_return": _estimate([run["final_return"] for run in finished if "final_return" in run]),
    }


def table(data: Data) -> Table:
    """A row per variant: medians with quartiles, interquartile means with 95 % intervals."""
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    heads = ("variant", "runs", "reached", "env steps", "seconds", "last evaluation", "final return")
    for head in heads:
        shown.add_column(head, justify="left" if head == "variant" else "right")
    for name, variant in data["variants"].items():
        summary = variant["summary"]
        shown.add_row(
            name,
            f"{summary['finished']}/{summary['asked']}",
            "–" if summary["reached"] is None else f"{summary['reached']:.0%}",
            _spread_text(summary["env_steps"], 0),
            _spread_text(summary["wall_s"], 1),
            _estimate_text(summary["eval_return"]),
            _estimate_text(summary["final_return"]),
        )
    return shown


def draw_curves(data: Data, environments: Sequence[str]) -> bytes | None:
    """A PNG of the return over env steps and over seconds, a line for each variant; None if no run has a curve."""
    every = {name: variant["runs"].values() for name, variant in data["variants"].items()}
    drawn = {name: [run for run in runs if run.get("curve")] for name, runs in every.items()}
    sources = {run["curve_of"] for runs in drawn.values() for run in runs}
    if not sources:
        return None
    label = "return"
    if len(sources) == 1:
        label = {"evaluator": "evaluation return", "actors": "return in training"}[sources.pop()]
    axes = {"environment steps": 0, "wall-clock time (s)": 2}
    panels = [Panel(x, [_line(name, runs, at) for name, runs in drawn.items() if runs]) for x, at in axes.items()]
    return plot_curves(f"{', '.join(environments)} (median and quartiles over seeds)", label, panels)


def _line(name: str, runs: Iterable[Data], column: int) -> Line:
    others, reached = list[tuple[Floats, Floats]](), list[tuple[Floats, Floats]]()
    for run in runs:
        points = np.array(run["curve"])
        (reached if run["result"]["reason"] == "at_return" else others).append((points[:, column], points[:, 1]))
    return band(name, others, reached)


def _points(rows: Sequence[Data], source: str, steps: str, score: str) -> Points:
    chosen = (row for row in rows if row["source"].startswith(source) and row.get(score) is not None)
    return [[row[steps], round(row[score], 6), row["wall_s"]] for row in chosen]


def _spread(values: Sequence[float]) -> Data | None:
    if not values:
        return None
    low, median, high = (round(float(value), 3) for value in quartiles(values))
    return {"median": median, "quartiles": [low, high]}


def _estimate(values: Sequence[float]) -> Data | None:
    if not values:
        return None
    interval = bootstrap_interval(values)
    return {"iqm": round(interquartile_mean(values), 6), "interval": interval and [round(end, 6) for end in interval]}


def _spread_text(spread: Data | None, digits: int) -> str:
    if spread is None:
        return "–"
    low, high = spread["quartiles"]
    return f"{spread['median']:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def _estimate_text(estimate: Data | None) -> str:
    if estimate is None:
        return "–"
    interval = estimate["interval"]
    return f"{estimate['iqm']:,.2f}" + (f" [{interval[0]:,.2f}, {interval[1]:,.2f}]" if interval else "")
