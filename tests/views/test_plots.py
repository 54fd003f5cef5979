from __future__ import annotations

import inspect
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib import rcParams
from matplotlib.colors import to_rgb
from PIL import Image

from apex_acer.algorithms.acer.acer import Acer
from apex_acer.algorithms.algorithm import LossOutput
from apex_acer.algorithms.samples import Sequences
from apex_acer.manager.manager import train
from apex_acer.views import plots
from apex_acer.views.curves import Line, Panel, band, single
from apex_acer.views.figures import FIGURES
from apex_acer.views.plots import COLOURS, REACHED, compact, plot_curves, plot_runs
from tests.boards import lines, scalars
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


def test_the_band_and_a_line_of_one_point_are_drawn() -> None:
    x = np.arange(5.0)
    wide, none = (plot_curves("", "", [Panel("", [Line("one", x, x, x - width, x + width)])]) for width in (3.0, 0.0))
    assert np.mean(drawn(wide) != 255) > 2 * np.mean(drawn(none) != 255)
    pixels = drawn(plot_curves("", "", [Panel("", [line("one", 1.0, points=1)])]))
    assert has(pixels[: int(0.8 * len(pixels))], COLOURS[0])


def test_the_legend_has_room_for_more_lines_than_colours_and_panels_go_on_in_the_next_row() -> None:
    few, many, four = (
        drawn(plot_curves("", "", [Panel("", [line(f"variant number {i}", i) for i in range(lines)])] * panels)).shape
        for lines, panels in ((2, 1), (2 * len(COLOURS), 1), (2, 4))
    )
    assert many[0] > few[0] + 100
    assert many[1] == few[1]
    assert four[1] > 2.5 * few[1], "three side by side"
    assert four[0] > 1.8 * (few[0] - 40)


@pytest.mark.parametrize(
    ("value", "label"),
    [(0, "0"), (0.25, "0.25"), (-21, "-21"), (999, "999"), (1000, "1k"), (12_500, "12.5k"), (-2_500_000, "-2.5M")],
)
def test_compact(value: float, label: str) -> None:
    assert compact(value) == label


def test_pyplot_is_not_used() -> None:
    imports = [line for line in inspect.getsource(plots).splitlines() if line.strip().startswith(("import ", "from "))]
    assert "from matplotlib.figure import Figure" in imports
    assert not [line for line in imports if "pyplot" in line]


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
    assert all(f">{label}<" in texts[name] for name, each in labels.items() for label in each)
    assert not any(">my_loss<" in text for name, text in texts.items() if name != "learner")


def test_a_metric_of_a_user_s_own_algorithm_is_written_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = Acer.loss

    def with_metric(self: Acer, samples: Sequences) -> LossOutput:
        output = loss(self, samples)
        return output._replace(metrics=output.metrics | {"my_loss": 2 * output.loss.detach()})

    monkeypatch.setattr(Acer, "loss", with_metric)
    train(tiny_run(tmp_path / "run", stop__env_steps=300, logging__every_seconds=0.01))
    assert any("my_loss" in row for row in lines(tmp_path / "run"))
    assert scalars(tmp_path / "run", "learner")["my_loss"]


def test_a_smoothed_line_has_its_curve_behind_it() -> None:
    x = np.arange(200.0)
    smooth = single("one", (x, np.where(x % 2 == 0, 1.0, -1.0)))
    assert smooth.behind
    alone = replace(smooth, behind=())
    both, without = (drawn(plot_curves("", "", [Panel("x", [line])])) for line in (smooth, alone))
    assert np.mean(both != 255) > 1.5 * np.mean(without != 255)


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
    long = Panel("x", [line(f"{label} {i}", i) for i in range(9)], "a_name_of_a_hundred_characters" * 4)
    pixels = drawn(plot_curves("Where time goes: cartpole-v1-20261121-193032-12345 and more", "", [long]))
    edge = np.concatenate([pixels[:3].ravel(), pixels[:, :3].ravel(), pixels[:, -3:].ravel(), pixels[-3:].ravel()])
    assert (edge == 255).all()
