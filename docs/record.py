"""Keeps what a run or a sweep has found as docs/results/<name>.json and .png: `python -m docs.record FOLDER NAME`."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

from apex_acer.curves import Line, Panel
from apex_acer.plots import plot_curves
from apex_acer.report import read_curve

RESULTS = Path(__file__).parent / "results"


def record(folder: Path, name: str) -> None:
    """A sweep's files as they are; of a run its configuration, its curve and a figure of it."""
    RESULTS.mkdir(exist_ok=True)
    if (folder / "results.json").exists():
        data, figure = (folder / "results.json").read_bytes(), (folder / "curves.png").read_bytes()
    else:
        found = read_run(folder)
        data, figure = (json.dumps(found) + "\n").encode(), draw(found)
    (RESULTS / f"{name}.json").write_bytes(data)
    (RESULTS / f"{name}.png").write_bytes(figure)


def read_run(folder: Path) -> dict[str, Any]:
    """The configuration and the curve `[env_steps, return, wall_s]` of a run."""
    curve_of, curve = read_curve(folder / "metrics.jsonl")
    config = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    return {"run": config, "curve_of": curve_of, "curve": curve}


def draw(found: dict[str, Any]) -> bytes:
    """The curve against environment steps and against seconds."""
    steps, returns, seconds = np.array(found["curve"]).T
    label = f"seed {found['run']['seed']}, {found['curve_of']}"
    panels = [
        Panel(x_label, [Line(label, x, returns, returns, returns)])
        for x_label, x in (("env steps", steps), ("seconds since the first step", seconds))
    ]
    return plot_curves(found["run"]["environment"]["id"], "mean return of whole games", panels)


if __name__ == "__main__":
    record(Path(sys.argv[1]), sys.argv[2])
