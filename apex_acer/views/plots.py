"""Draws figures with matplotlib, which only this module imports, without pyplot's global state."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from apex_acer.config import writing
from apex_acer.system.files import write
from apex_acer.system.output import printable
from apex_acer.views.curves import Line, Panel
from apex_acer.views.figures import FIGURES, make_panels, make_title, read_runs

# Okabe and Ito's palette for every kind of colour vision, without yellow, which is too light on white
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
DASHES = ("-", "--", ":", "-.")  # each is used for a whole palette, then the next
GREY = "#555555"
PANEL_INCHES = (5.2, 3.6)
MOST_COLUMNS = 3
PAD_INCHES = 0.1  # on both sides of a panel
LEGEND_ROW_INCHES = 0.25
CHARACTERS_PER_INCH = 13  # in the legend's font, roughly
HANDLE_CHARACTERS = 8
LABEL_CHARACTERS = 36  # of a line beside a panel
TITLE_WIDER = 1.4  # a character of the title, compared with the legend's
REACHED = "target reached, constant from here on"
MARK: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 4.0, "markerfacecolor": "white"}


def plot_runs(folders: Sequence[str | Path], out: str | Path = "", form: Literal["png", "svg"] = "png") -> list[Path]:
    """Draws the metrics of runs; returns the paths of the figures. A figure without data is left out.

    Args:
        folders: folders of runs; several are compared, and runs that differ only in their seed are one line.
        out: folder of the figures; empty: `plots/` in the run's folder or, for several runs, in the current folder.
        form: format of the files.

    Raises:
        ConfigError: if a folder holds no run, no run has rows yet, or `out` cannot be written.
    """
    runs = read_runs([Path(folder) for folder in folders])
    target = Path(out or (runs[0].folder if len(runs) == 1 else Path()) / "plots")
    paths = []
    for name in FIGURES:
        if panels := make_panels(name, runs):
            paths.append(target / f"{name}.{form}")
            drawing = plot_curves(make_title(name, runs), "", panels, form)
            with writing("out", target):
                target.mkdir(parents=True, exist_ok=True)
                write(paths[-1], drawing)
    return paths


@matplotlib.rc_context({"text.parse_math": False})  # a dollar sign in a name begins no formula
def plot_curves(title: str, y_label: str, panels: Sequence[Panel], form: Literal["png", "svg"] = "png") -> bytes:
    """Draws panels in a grid with one legend, from which lines that a panel's title names are left out.

    Lines with the same label have the same colour in every panel.

    Args:
        title: title above all panels.
        y_label: label of the y axis that all panels share; empty: each panel has its own axis.
        panels: one or more panels.
        form: format of the file.

    Returns:
        The bytes of the file.
    """
    title = printable(title)
    rows, columns = math.ceil(len(panels) / MOST_COLUMNS), min(len(panels), MOST_COLUMNS)
    labels = list(dict.fromkeys(line.label for panel in panels for line in panel.lines))
    titles = {panel.title for panel in panels}
    named = [printable(label) for label in labels if label not in titles]
    if any(len(line.reached[0]) for panel in panels for line in panel.lines):
        named.append(REACHED)
    width = max(PANEL_INCHES[0] * columns, _inches(title, named))
    legend_columns, legend_rows = _legend_shape(named, width)
    size = (width, PANEL_INCHES[1] * rows + legend_rows * LEGEND_ROW_INCHES)
    figure = Figure(size, dpi=150, layout=ConstrainedLayoutEngine(w_pad=PAD_INCHES))
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, sharey=bool(y_label), squeeze=False).ravel()
    for ax, panel in zip(axes, panels, strict=False):
        _draw(ax, panel, labels)
    for ax in axes[len(panels) :]:
        ax.remove()
    if y_label:
        axes[0].set_ylabel(y_label)
    figure.suptitle(title, fontsize=12)
    handles = {line.get_label(): line for ax in axes for line in ax.get_lines()}
    handles[REACHED] = Line2D([], [], color=GREY, **MARK)
    shown = [handles[label] for label in named]
    if shown:
        figure.legend(shown, named, loc="outside lower center", ncols=legend_columns, frameon=False, fontsize=9)
    file = io.BytesIO()
    figure.savefig(file, format=form)
    return file.getvalue()


def compact(value: float, position: int | None = None) -> str:
    """Label of a tick: `20k` for 20000, `2.5M` for 2500000; `position` is matplotlib's and not used."""
    for unit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:g}{suffix}"
    return f"{value:g}"


def _inches(title: str, labels: Sequence[str]) -> float:
    characters = [len(title) * TITLE_WIDER, *(len(label) + HANDLE_CHARACTERS for label in labels)]
    return max(characters) / CHARACTERS_PER_INCH


def _legend_shape(labels: Sequence[str], inches: float) -> tuple[int, int]:
    widest = max(map(len, labels), default=0) + HANDLE_CHARACTERS
    columns = max(1, min(len(labels), int(inches * CHARACTERS_PER_INCH / widest)))
    return columns, math.ceil(len(labels) / columns)


def _draw(ax: Axes, panel: Panel, labels: Sequence[str]) -> None:
    for line in panel.lines:
        index = labels.index(line.label)
        colour, dashes = COLOURS[index % len(COLOURS)], DASHES[index // len(COLOURS) % len(DASHES)]
        marker = "o" if len(line.x) == 1 else ""
        _draw_behind(ax, line, colour)
        ax.fill_between(line.x, line.low, line.high, color=colour, alpha=0.18, linewidth=0)
        ax.plot(line.x, line.middle, dashes, color=colour, linewidth=1.6, marker=marker, label=printable(line.label))
        ax.plot(*line.reached, color=colour, zorder=3, label="_reached", **MARK)
    ax.set_xlabel(panel.x_label)
    ax.set_ylabel(fill(printable(panel.y_label), LABEL_CHARACTERS))
    ax.set_title(panel.title, fontsize=10, loc="left", color=GREY)
    ax.grid(color="#DDDDDD", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(GREY)
    ax.tick_params(color=GREY, labelcolor=GREY)
    ax.xaxis.set_major_locator(MaxNLocator(6))
    ax.xaxis.set_major_formatter(FuncFormatter(compact))
    ax.yaxis.set_major_formatter(FuncFormatter(compact))


def _draw_behind(ax: Axes, line: Line, colour: str) -> None:
    """Draws the curves that a line sums up; behind a band they leave the y axis alone, because of outliers."""
    is_band = bool((line.low != line.high).any())
    curves = [np.column_stack(curve) for curve in line.behind]
    ax.add_collection(LineCollection(curves, colors=colour, linewidths=0.8, alpha=0.3), autolim=not is_band)
    for curve in curves if is_band else ():
        ax.update_datalim(curve, updatey=False)
