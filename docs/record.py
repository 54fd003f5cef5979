"""Stores a run or a sweep as docs/results/NAME.json and NAME.png: `python -m docs.record FOLDER NAME [GAMES…]`.

GAMES are files with the output of `apex-acer evaluate --json` for the run's weights. Without arguments it redraws all
figures and rewrites the table in docs/results.md and the entries in docs/results/*.md.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from apex_acer.storage.history import read_rows
from apex_acer.tools.sweep.report import draw_curves, read_curve
from apex_acer.views.curves import Line, Panel
from apex_acer.views.plots import plot_curves
from docs import comparisons
from docs.entries import RESULTS, write_pages

PATHS = "weights", "folder"  # keys of a result that name files of this machine
WIDTH = 250_000  # env steps per point of a curve
LEARNER = "entropy", "average_policy_kl", "rho", "value", "q_loss", "grad_norm"


def record(folder: Path, name: str, games: Sequence[Path]) -> None:
    """Stores a sweep's `results.json`, or what `read_run` returns for a run, and a figure of it."""
    RESULTS.mkdir(exist_ok=True)
    results = folder / "results.json"
    text = results.read_text(encoding="utf-8") if results.exists() else json.dumps(read_run(folder, games)) + "\n"
    (RESULTS / f"{name}.json").write_text(text, encoding="utf-8")
    (RESULTS / f"{name}.png").write_bytes(draw(json.loads(text)))


def redraw() -> None:
    """Redraws the figures of runs and sweeps from the JSON files beside them, and the comparisons."""
    for path in sorted(RESULTS.glob("*.png")):
        data = path.with_suffix(".json")
        found = json.loads(data.read_text(encoding="utf-8")) if data.exists() else {}
        if found.keys() & {"variants", "curve"}:
            path.write_bytes(draw(found))
    comparisons.redraw()


def read_run(folder: Path, games: Sequence[Path] = ()) -> dict[str, Any]:
    """A run's configuration, result, curves and evaluations; `curve` has points `[env_steps, return, wall_s]`."""
    curve_of, curve = read_curve(folder / "metrics.jsonl")
    config = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    end = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    rows = list(read_rows(folder / "metrics.jsonl"))
    training = list(training_games(rows))
    return {
        "run": config,
        "curve_of": curve_of,
        "curve": curve,
        "result": {name: value for name, value in end.items() if name not in PATHS},
        "last_training_games": dict(zip(("episodes", "mean"), last_games(training, 100), strict=True)),
        "training_curve": training_curve(training, WIDTH),
        "learner_curve": learner_curve(rows, WIDTH),
        "fresh_games": [json.loads(path.read_text(encoding="utf-8").splitlines()[-1]) for path in games],
    }


def training_games(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, int, float]]:
    """For each row of an actor: env steps, the number of games ended since its last row, and their mean return."""
    before = dict[str, int]()
    for row in rows:
        if row["source"].startswith("actor") and "episode_return" in row:
            since = row["episodes"] - before.get(row["source"], 0)
            before[row["source"]] = row["episodes"]
            # a restarted actor counts from 0
            yield row["env_steps"], since if since > 0 else row["episodes"], row["episode_return"]


def last_games(games: Sequence[tuple[int, int, float]], num: int) -> tuple[int, float]:
    """Number and mean return of the last games: at least `num`, and a few more if the first row has several."""
    total, returns = 0, 0.0
    for _, count, mean in reversed(games):
        if total >= num:
            break
        total, returns = total + count, returns + count * mean
    return total, returns / max(total, 1)


def training_curve(games: Sequence[tuple[int, int, float]], width: int) -> list[tuple[int, int, float]]:
    """For each `width` env steps: the first step, the number of training games that ended, and their mean return."""
    parts = itertools.groupby(sorted(games), lambda game: game[0] // width * width)
    return [(begin, *last_games(list(part), sys.maxsize)) for begin, part in parts]


def learner_curve(rows: Iterable[Mapping[str, Any]], width: int) -> list[dict[str, float]]:
    """For each `width` env steps: the first step, and the means of the learner's metrics in `LEARNER`."""
    learned = (row for row in rows if row["source"] == "learner" and "grad_norm" in row)
    curve = []
    for begin, part in itertools.groupby(learned, lambda row: row["env_steps"] // width * width):
        own = list(part)
        values = {name: [row[name] for row in own if name in row] for name in LEARNER}  # a delayed policy has gaps
        means = {name: statistics.fmean(found) for name, found in values.items() if found}
        curve.append({"env_steps": begin, **means})
    return curve


def draw(found: dict[str, Any]) -> bytes:
    """A figure of the return over env steps and over seconds."""
    if "variants" in found:
        drawn = draw_curves(found, [found["run"]["environment"]["id"]])
        assert drawn, "a sweep without a curve"
        return drawn
    steps, returns, seconds = np.array(found["curve"]).T
    label = f"seed {found['run']['seed']}, {found['curve_of']}"
    panels = [
        Panel(x_label, [Line(label, x, returns, returns, returns)])
        for x_label, x in (("env steps", steps), ("seconds since the first step", seconds))
    ]
    return plot_curves(found["run"]["environment"]["id"], "mean return of whole games", panels)


if __name__ == "__main__":
    if sys.argv[1:]:
        record(Path(sys.argv[1]), sys.argv[2], [Path(name) for name in sys.argv[3:]])
    else:
        redraw()
        write_pages()
