from __future__ import annotations

import inspect
import io

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from apex_acer import plots
from apex_acer.plots import COLOURS, Line, Panel, compact, plot_curves
from tests.test_layering import imports


def line(label: str, level: float, points: int = 50) -> Line:
    x = np.linspace(0, 40_000, points)
    middle = np.full(points, level)
    return Line(label, x, middle, middle - 0.2, middle + 0.2)


def drawn(png: bytes) -> np.ndarray:
    """Pixels `[H, W, 3]` of a PNG."""
    with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
        return np.asarray(image.convert("RGB"))


def has(pixels: np.ndarray, colour: str) -> bool:
    rgb = np.round(255 * np.array(to_rgb(colour)))
    return bool((np.abs(pixels - rgb) <= 2).all(-1).any())


def test_every_line_is_in_every_panel() -> None:
    lines = [line("one", 1.0), line("two", 2.0)]
    pixels = drawn(plot_curves("Title", "return", [Panel("steps", lines), Panel("seconds", lines)]))
    left, right = np.array_split(pixels, 2, axis=1)
    axes_left, axes_right = (half[: int(0.8 * len(half))] for half in (left, right))  # without the legend below
    for half in (axes_left, axes_right):
        assert has(half, COLOURS[0])
        assert has(half, COLOURS[1])
        assert not has(half, COLOURS[2])
    assert has(pixels[int(0.85 * len(pixels)) :], COLOURS[1])


def test_title_and_labels_are_drawn() -> None:
    pictures = [plot_curves(*texts, [Panel(x, [line("one", 1.0)])]) for *texts, x in (("A", "b", "c"), ("A", "b", "d"))]
    assert not np.array_equal(*map(drawn, pictures))
    assert not np.array_equal(drawn(plot_curves("", "b", [Panel("c", [line("one", 1.0)])])), drawn(pictures[0]))


def test_the_band_is_drawn() -> None:
    x = np.arange(5.0)
    wide, none = (plot_curves("", "", [Panel("", [Line("one", x, x, x - width, x + width)])]) for width in (3.0, 0.0))
    assert np.mean(drawn(wide) != 255) > 2 * np.mean(drawn(none) != 255)


def test_a_line_of_one_point_can_be_seen() -> None:
    pixels = drawn(plot_curves("", "", [Panel("", [line("one", 1.0, points=1)])]))
    assert has(pixels[: int(0.8 * len(pixels))], COLOURS[0])


def test_the_legend_has_room_for_more_lines_than_colours() -> None:
    few, many = (
        drawn(plot_curves("", "", [Panel("", [line(f"variant number {i}", i) for i in range(count)])]))
        for count in (2, 2 * len(COLOURS))
    )
    assert many.shape[0] > few.shape[0] + 100
    assert many.shape[1] == few.shape[1]


@pytest.mark.parametrize(
    ("value", "label"),
    [(0, "0"), (0.25, "0.25"), (-21, "-21"), (999, "999"), (1000, "1k"), (12_500, "12.5k"), (-2_500_000, "-2.5M")],
)
def test_compact(value: float, label: str) -> None:
    assert compact(value) == label


def test_pyplot_is_not_used() -> None:
    names = list(imports(inspect.getsource(plots), "apex_acer"))
    assert "matplotlib.figure.Figure" in names
    assert not [name for name in names if "pyplot" in name]
