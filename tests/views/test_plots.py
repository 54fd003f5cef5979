from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib import rcParams
from matplotlib.colors import to_rgb
from PIL import Image

from apex_acer.views.curves import Line, Panel, band, single
from apex_acer.views.figures import FIGURES
from apex_acer.views.plots import COLOURS, REACHED, compact, plot_curves, plot_runs
from tests.histories import made_up_rows, make_up
from tests.runs import tiny_run


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


def test_every_line_is_in_every_panel_with_its_band_and_the_curve_behind_it() -> None:
    lines = [line("one", 1.0), line("of one point", 2.0, points=1)]
    pixels = drawn(plot_curves("Title", "return", [Panel("steps", lines), Panel("seconds", lines)]))
    for half in np.array_split(pixels[: int(0.8 * len(pixels))], 2, axis=1):  # without the legend below
        assert [has(half, colour) for colour in COLOURS[:3]] == [True, True, False]
    assert has(pixels[int(0.85 * len(pixels)) :], COLOURS[1])
    x = np.arange(200.0)
    smooth = single("one", (x, np.where(x % 2 == 0, 1.0, -1.0)))
    wide = Line("one", x, x, x - 100, x + 100)
    for more, less in ((smooth, replace(smooth, behind=())), (wide, replace(wide, low=x, high=x))):
        inked, plain = (np.mean(drawn(plot_curves("", "", [Panel("x", [each])])) != 255) for each in (more, less))
        assert inked > 1.5 * plain


# ── runs ──


@pytest.fixture
def _texts_stay_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rcParams, "svg.fonttype", "none")


@pytest.mark.usefixtures("_texts_stay_texts")
def test_figures_of_several_runs_name_units_and_what_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [row | {"my_loss": 1.0} if row["source"] == "learner" else row for row in made_up_rows(0, 80, num=20)]
    for gamma in (0.8, 0.9):
        make_up(tmp_path / f"{gamma}", tiny_run(algorithm__gamma=gamma), rows)
    paths = plot_runs(sorted(tmp_path.iterdir()), form="svg")
    assert paths == [Path("plots") / f"{name}.svg" for name in FIGURES]
    texts = {path.stem: path.read_text() for path in paths}
    assert all(f"gamma={gamma} (1 run)" in text for gamma in (0.8, 0.9) for text in texts.values())
    labels = {
        "learner": ("q_loss (reward²)", "entropy (nats)", "average_policy_kl (nats)", "grad_norm", "my_loss"),
        "throughput": ("env_steps_per_s (env steps / s)", "wall-clock time (s)"),
        "returns": ("eval_return (reward)", "environment steps"),
    }
    assert [compact(value) for value in (0, 0.25, 999, 12_500, -2_500_000)] == ["0", "0.25", "999", "12.5k", "-2.5M"]
    assert all(f">{label}<" in texts[name] for name, each in labels.items() for label in each)
    assert not any(">my_loss<" in text for name, text in texts.items() if name != "learner")


@pytest.mark.usefixtures("_texts_stay_texts")
def test_a_run_far_away_does_not_flatten_the_band_that_sums_it_up() -> None:
    x = np.arange(5.0)
    runs = [(x, np.full(5, value)) for value in (1.0, 2.0, 3.0, 4.0, -90_000.0)]
    text = plot_curves("", "", [Panel("x", [band("one", runs)])], "svg").decode()
    assert ">2.5<" in text  # a tick within the band
    assert "80k<" not in text


@pytest.mark.usefixtures("_texts_stay_texts")
def test_the_legend_names_what_no_title_does_and_ends_at_a_target() -> None:
    plain = line("learner", 1.0)
    marked = replace(plain, reached=(np.array([20_000.0]), np.array([1.0])))
    panels = [[Panel("x", [each, line("other", 2.0)], title="learner")] for each in (plain, marked)]
    texts = [plot_curves("", "", panel, "svg").decode() for panel in panels]
    assert [texts[0].count(f">{label}<") for label in ("learner", "other")] == [1, 1]
    assert plot_curves("", "", [Panel("x", [plain], title="learner")], "svg").decode().count(">learner<") == 1
    assert [text.count(f">{REACHED}<") for text in texts] == [0, 1]
    assert texts[1].count("<use ") > texts[0].count("<use ") + 1  # the mark, and that in the legend


@pytest.mark.usefixtures("_texts_stay_texts")
def test_names_from_files_are_drawn_as_text_whatever_is_in_them_and_stay_within_the_figure() -> None:
    panel = Panel("x", [line("two\nlines\x1b[2J", 1.0)], "bell\x07 of $a metric^$")
    text = plot_curves("title\x07", "", [panel], "svg").decode()
    assert all(f">{name}<" in text for name in ("two lines\\x1b[2J", "bell\\x07 of $a metric^$", "title\\x07"))
    label = "learning_rate=0.001, entropy_cost=0.01, hidden_sizes=64+64 (5 runs)"
    long = Panel("x", [line(f"{label} {i}", i) for i in range(2 * len(COLOURS))], "a_name_of_a_hundred_characters" * 4)
    pixels = drawn(plot_curves("Where time goes: cartpole-v1-20261121-193032-12345 and more", "", [long] * 4))
    edge = np.concatenate([pixels[:3].ravel(), pixels[:, :3].ravel(), pixels[:, -3:].ravel(), pixels[-3:].ravel()])
    assert (edge == 255).all()
