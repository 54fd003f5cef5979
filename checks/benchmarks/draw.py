"""Draws where every process of the benchmark's runs spent its time."""

from __future__ import annotations

import io
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from apex_acer.views.plots import COLOURS

# what is done, in the order of the bars, and how it is named; what no timer covers comes last
PHASES = {
    "time_learning": "learning",
    "time_environment": "environment",
    "time_policy": "policy",
    "time_taking": "taking unrolls",
    "time_saving": "saving",
    "other": "other",
    "time_waiting": "waiting",
}
COLOUR = dict(zip(PHASES, (*COLOURS[:6], "#DDDDDD"), strict=True))


def draw_time(result: dict[str, Any]) -> bytes:
    """A bar for each process of each run, as a PNG file; `result` is what `make bench` writes."""
    bars = [
        (f"{source.replace('_', ' ')}, ratio {ratio}", shares)
        for ratio, run in result["runs"].items()
        for source, shares in run["time"].items()
    ]
    figure = Figure((8, 0.8 + 0.3 * len(bars)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for row, (_, shares) in enumerate(bars):
        left = 0.0
        for phase, name in PHASES.items():
            share = shares.get(phase, 0.0)
            axes.barh(row, share, left=left, color=COLOUR[phase], label=name if row == 0 else None)
            left += share
    axes.set_yticks(range(len(bars)), [label for label, _ in bars])
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of the time")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=len(PHASES), frameon=False, fontsize=8)
    data = io.BytesIO()
    figure.savefig(data, format="png")
    return data.getvalue()
