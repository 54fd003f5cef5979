"""Keeps what a run or a sweep has found as docs/results/<name>.json and .png: `python -m docs.record FOLDER NAME`.

Without arguments it draws the figures that are there once more.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

from apex_acer.tools.sweep.report import draw_curves, read_curve
from apex_acer.views.curves import Line, Panel
from apex_acer.views.plots import plot_curves

RESULTS = Path(__file__).parent / "results"


def record(folder: Path, name: str) -> None:
    """A sweep's results as they are, of a run its configuration and its curve; and a figure of them."""
    RESULTS.mkdir(exist_ok=True)
    results = folder / "results.json"
    text = results.read_text(encoding="utf-8") if results.exists() else json.dumps(read_run(folder)) + "\n"
    (RESULTS / f"{name}.json").write_text(text, encoding="utf-8")
    (RESULTS / f"{name}.png").write_bytes(draw(json.loads(text)))


def redraw() -> None:
    """Every figure of a run or a sweep, from the JSON beside it."""
    for path in sorted(RESULTS.glob("*.png")):
        data = path.with_suffix(".json")
        found = json.loads(data.read_text(encoding="utf-8")) if data.exists() else {}
        if found.keys() & {"variants", "curve"}:
            path.write_bytes(draw(found))


def read_run(folder: Path) -> dict[str, Any]:
    """The configuration and the curve `[env_steps, return, wall_s]` of a run."""
    curve_of, curve = read_curve(folder / "metrics.jsonl")
    config = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    return {"run": config, "curve_of": curve_of, "curve": curve}


def draw(found: dict[str, Any]) -> bytes:
    """Curves against environment steps and against seconds."""
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
        record(Path(sys.argv[1]), sys.argv[2])
    else:
        redraw()
