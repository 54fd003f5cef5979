"""Figures; the only importer of matplotlib. They are drawn on a canvas of their own, without pyplot's global state."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from apex_acer.statistics import Floats

# Okabe and Ito's palette, distinct with every kind of colour vision; yellow is too light for a line on white
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
DASHES = ("-", "--", ":", "-.")  # one after the other, each for a whole palette
GREY = "#555555"
PANEL_INCHES = (5.2, 3.6)
LEGEND_ROW_INCHES = 0.25
CHARACTERS_PER_INCH = 13  # of the legend's font, roughly
HANDLE_CHARACTERS = 8


@dataclass(frozen=True)
class Line:
    """A line and the band around it; arrays are `[L]`."""

    label: str
    x: Floats
    middle: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True)
class Panel:
    """One set of axes."""

    x_label: str
    lines: Sequence[Line]


def plot_curves(title: str, y_label: str, panels: Sequence[Panel]) -> bytes:
    """Draws panels side by side, which share the y axis and one legend below.

    Lines with the same place in their panels are of one colour.

    Returns:
        A PNG file.
    """
    width, height = PANEL_INCHES[0] * len(panels), PANEL_INCHES[1]
    columns, rows = _legend_shape([line.label for line in panels[0].lines], width)
    figure = Figure((width, height + rows * LEGEND_ROW_INCHES), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for ax, panel in zip(axes, panels, strict=True):
        _draw(ax, panel)
    axes[0].set_ylabel(y_label)
    figure.suptitle(title, fontsize=12)
    figure.legend(handles=axes[0].get_lines(), loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def compact(value: float, position: int | None = None) -> str:
    """A tick's label: 20000 is `20k`, 2500000 is `2.5M`; `position` is matplotlib's, and of no use here."""
    del position
    for unit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:g}{suffix}"
    return f"{value:g}"


def _legend_shape(labels: Sequence[str], inches: float) -> tuple[int, int]:
    """Columns that fit into the width, and the rows that result."""
    widest = max(map(len, labels), default=0) + HANDLE_CHARACTERS
    columns = max(1, min(len(labels), int(inches * CHARACTERS_PER_INCH / widest)))
    return columns, math.ceil(len(labels) / columns)


def _draw(ax: Axes, panel: Panel) -> None:
    for index, line in enumerate(panel.lines):
        colour, dashes = COLOURS[index % len(COLOURS)], DASHES[index // len(COLOURS) % len(DASHES)]
        marker = "o" if len(line.x) == 1 else ""
        ax.fill_between(line.x, line.low, line.high, color=colour, alpha=0.18, linewidth=0)
        ax.plot(line.x, line.middle, dashes, color=colour, linewidth=1.6, marker=marker, label=line.label)
    ax.set_xlabel(panel.x_label)
    ax.grid(color="#DDDDDD", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(GREY)
    ax.tick_params(color=GREY, labelcolor=GREY)
    ax.xaxis.set_major_locator(MaxNLocator(6))
    ax.xaxis.set_major_formatter(FuncFormatter(compact))
    ax.yaxis.set_major_formatter(FuncFormatter(compact))
