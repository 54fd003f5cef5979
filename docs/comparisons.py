"""Figures that compare results: with published curves on Atari, with each other, and with other trainers' in races."""

from __future__ import annotations

import io
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from apex_acer.views.curves import Line, Panel
from apex_acer.views.plots import COLOURS, GREY, plot_curves

RESULTS = Path(__file__).parent / "results"
# file of this project's curve, by game
GAMES = {
    "Pong": "pong-10m",
    "Breakout": "breakout-resumed",
    "Qbert": "qbert",
    "Seaquest": "seaquest",
    "BeamRider": "beamrider",
    "SpaceInvaders": "spaceinvaders",
    "Enduro": "enduro",
}
LARGER_UNTIL = 4_297_038  # env steps
# labels of runs of several games, which have one colour in all panels
ATARI, FASTER_FALL = "atari: larger network, less entropy", "atari with a rate to 0.3"
# other runs: label, file, env steps before it
OTHERS = {
    "SpaceInvaders": [
        ("replay of 800,000, constant rate", "spaceinvaders-constant", 0),
        (ATARI, "spaceinvaders-final-fraction", 0),
        (ATARI, "spaceinvaders-final-fraction-2", 0),
        (ATARI, "spaceinvaders-final-fraction-3", 0),
        (FASTER_FALL, "spaceinvaders-larger", 0),
        ("larger network, more entropy", "spaceinvaders-nature-replay-ratio-1", 0),
        ("from there on less, constant rate", "spaceinvaders-entropy", LARGER_UNTIL),
        ("published recipe, small network", "spaceinvaders-baselines-small", 0),
    ],
    "Breakout": [(ATARI, "breakout-atari", 0)],
    "Qbert": [(ATARI, "qbert-final-fraction", 0)],
    "Seaquest": [(ATARI, "seaquest-atari", 0)],
    "BeamRider": [
        ("replay of 800,000, constant rate", "beamrider-constant", 0),
        (ATARI, "beamrider-atari", 0),
        ("atari, another run, stopped", "beamrider-final-fraction", 0),
        (FASTER_FALL, "beamrider-nature-replay-ratio-1", 0),
    ],
}
# runs whose learners are compared: label, file, env steps before it
LEARNERS = (
    ("SpaceInvaders, small network", "spaceinvaders-constant", 0),
    ("SpaceInvaders, atari with a rate to 0.3", "spaceinvaders-larger", 0),
    ("SpaceInvaders, atari", "spaceinvaders-final-fraction", 0),
    ("SpaceInvaders, atari, seed 1", "spaceinvaders-final-fraction-2", 0),
    ("SpaceInvaders, atari, seed 2", "spaceinvaders-final-fraction-3", 0),
    ("SpaceInvaders, larger network, more entropy", "spaceinvaders-nature-replay-ratio-1", 0),
    ("from there on less, constant rate", "spaceinvaders-entropy", LARGER_UNTIL),
    ("SpaceInvaders, published recipe, small network", "spaceinvaders-baselines-small", 0),
    ("BeamRider, small network", "beamrider-constant", 0),
    ("BeamRider, atari with a rate to 0.3", "beamrider-nature-replay-ratio-1", 0),
    ("BeamRider, atari", "beamrider-atari", 0),
    ("Qbert, atari", "qbert-final-fraction", 0),
    ("Breakout, atari", "breakout-atari", 0),
    ("Seaquest, atari", "seaquest-atari", 0),
)
LEARNER = {
    "entropy": "entropy of the policy, nats",
    "average_policy_kl": "KL divergence from the average policy",
    "rho": "mean of the truncated importance weights",
    "learning_rate": "learning rate",
}
PUBLISHED = {"acer": "baselines ACER, six runs", "ppo2": "baselines PPO", "deepq": "baselines DQN"}
LAST = 10_000_000  # env steps
OURS, THEIRS = COLOURS[0], COLOURS[1]
ALGORITHMS = {"apex_dqn": "Ape-X DQN", "crossq": "CrossQ"}  # the others' names are capitals


class Race(NamedTuple):
    """Runs of one trainer to a score."""

    label: str
    file: str
    peer: str
    """Name in the file."""
    is_ours: bool


RACES = (
    Race("CartPole to 475: apex_acer, ACER", "peers-cartpole", "apex_acer", True),
    Race("SB3, PPO", "peers-cartpole", "sb3_ppo", False),
    Race("CartPole to 475: apex_acer, PPO", "peers-cartpole-ppo", "apex_acer_ppo", True),
    Race("SB3, PPO", "peers-cartpole-ppo", "sb3_ppo", False),
    Race("Pendulum to −160: apex_acer, SAC", "peers-pendulum", "apex_acer_sac", True),
    Race("SB3, SAC", "peers-pendulum", "sb3_sac", False),
    Race("Pendulum to −160: apex_acer, TD3", "peers-pendulum", "apex_acer_td3", True),
    Race("SB3, TD3", "peers-pendulum", "sb3_td3", False),
)


def read(name: str) -> dict[str, Any]:
    """A JSON file in docs/results."""
    content: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return content


def draw_published() -> bytes:
    """Returns of training games on seven Atari games beside the published curves."""
    published = read("published-atari")["games"]
    panels = []
    for game in GAMES:
        lines = [training_line(*run) for run in ours(game)]
        lines[1:1] = [line(label, np.array(published[game][key], float)) for key, label in PUBLISHED.items()]
        panels.append(Panel("env steps", lines, title=game))
    return plot_curves("Return of training games on Atari", "", panels)


def draw_published_minutes() -> bytes:
    """Returns of training games on seven Atari games by minutes, beside the ends of published curves, which have none."""
    published = read("published-atari")["games"]
    panels = []
    for game in GAMES:
        lines = [by_minutes(*run) for run in ours(game)]
        last = max(run.x[-1] for run in lines)
        ends = {label: published[game][key][-1][1] for key, label in PUBLISHED.items()}
        lines[1:1] = [line(f"end of {label}", np.array([(0, end), (last, end)])) for label, end in ends.items()]
        panels.append(Panel("minutes on two cores", lines, title=game))
    return plot_curves("Return of training games on Atari by minutes", "", panels)


def draw_learners() -> bytes:
    """What the learners of ACER measured, and their learning rates."""
    panels = []
    for metric, title in LEARNER.items():
        lines = []
        for label, name, before in LEARNERS:
            run = read(name)
            curve = [point | {"learning_rate": rate(run["run"], point["env_steps"])} for point in run["learner_curve"]]
            points = np.array([(before + point["env_steps"], point[metric]) for point in curve])
            lines.append(line(label, points[points[:, 0] < LAST]))
        panels.append(Panel("env steps", lines, title=title))
    return plot_curves("Learners of ACER, one seed each", "", panels)


def rate(run: dict[str, Any], env_steps: int) -> float:
    """Learning rate of a run after `env_steps`."""
    optimizer = run["optimizer"]
    done = env_steps / run["stop"]["env_steps"] if optimizer["schedule"] == "linear" else 0.0
    return float(optimizer["learning_rate"] * (1 - done * (1 - optimizer["final_fraction"])))


def ours(game: str) -> list[tuple[str, str, int]]:
    """Runs of a game in this project: label, file, env steps before it."""
    return [("apex_acer ACER, one seed", GAMES[game], 0), *OTHERS.get(game, [])]


def training_line(label: str, name: str, before: int) -> Line:
    """A run's training curve, `before` env steps later; a point stands in the middle of its env steps."""
    begins, _, returns = np.array(read(name)["training_curve"], float).T
    begins += before
    points = np.column_stack([begins + (begins[1] - begins[0]) / 2, returns])
    return line(label, points[begins < LAST])


def by_minutes(label: str, name: str, before: int) -> Line:
    """`training_line` over minutes, as if all its env steps had taken as long as the run's on average."""
    result, steps = read(name)["result"], training_line(label, name, before)
    minutes = steps.x * result["wall_s"] / result["env_steps"] / 60
    return line(label, np.column_stack([minutes, steps.middle]))


def line(label: str, points: np.ndarray[Any, Any]) -> Line:
    """A line without a band through `points` `[L, 2]`."""
    x, y = points.T
    return Line(label, x, y, y, y)


def draw_races(races: Sequence[Race] = RACES) -> bytes:
    """Seconds to a score: every seed, and the medians with and without pauses for evaluation."""
    figure = Figure((9, 4.4), dpi=150, layout="constrained")
    ax = figure.subplots()
    for index, race in enumerate(races):
        y = -index - 0.6 * (index // 2)
        colour = OURS if race.is_ours else THEIRS
        runs = [run for run in read(race.file)["runs"] if run["peer"] == race.peer]
        for run in runs:
            fill = colour if run["reached"] else "white"
            ax.plot(run["wall_s"], y, "o", markersize=6, markeredgecolor=colour, markerfacecolor=fill, alpha=0.7)
        training, wall = (statistics.median(run[key] for run in runs) for key in ("train_s", "wall_s"))
        if not race.is_ours:  # it evaluates beside the training
            ax.plot(training, y, marker=5, markersize=8, color="black", linestyle="")
        ax.plot(wall, y, "|", markersize=20, markeredgewidth=2.5, color="black")
        ax.annotate(f"{wall:.3g} s", (wall, y), xytext=(0, 11), textcoords="offset points", ha="center", fontsize=8)
    places = [-index - 0.6 * (index // 2) for index in range(len(races))]
    ax.set_yticks(places, [race.label for race in races])
    ax.set_ylim(places[-1] - 0.7, 0.8)
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set_xlabel("seconds from the first env step to the end, on two cores with AVX512-bf16 (log scale)")
    only_x(ax)
    keys = {
        "seed": Line2D([], [], linestyle="", marker="o", color=GREY),
        "seed that missed the target": Line2D([], [], linestyle="", marker="o", color=GREY, markerfacecolor="white"),
        "median": Line2D([], [], linestyle="", marker="|", markersize=14, markeredgewidth=2.5, color="black"),
        "median without evaluation (SB3)": Line2D([], [], linestyle="", marker=5, color="black"),
    }
    figure.suptitle("Time to a score beside Stable-Baselines3 (five seeds each, in turns)", fontsize=12)
    figure.legend(keys.values(), keys, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return png(figure)


def draw_minutes() -> bytes:
    """Scores after minutes of training, a panel for each file of `make race`; the best of its trainers is on top."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("race-*.json"))]
    rows = [len({run["peer"] for run in race["runs"]}) for race in found]
    figure = Figure((9, 0.8 + sum(0.5 + 0.3 * num for num in rows)), dpi=150, layout="constrained")
    for ax, race in zip(figure.subplots(len(found), squeeze=False, height_ratios=rows)[:, 0], found, strict=True):
        draw_scores(ax, race)
    figure.suptitle("Score after minutes of training on two cores", fontsize=12)
    return png(figure)


def draw_scores(ax: Axes, race: dict[str, Any]) -> None:
    """The scores of one task: the later, the darker; a seed each, with the standard error over its games."""
    last = {run["peer"]: run["scores"][-1]["mean"] for run in race["runs"]}
    places = {peer: -place for place, peer in enumerate(sorted(last, key=last.__getitem__, reverse=True))}
    for run in race["runs"]:
        colour, y = OURS if run["peer"].startswith("apex_acer") else THEIRS, places[run["peer"]]
        for age, score in enumerate(run["scores"], start=1):
            error, alpha = score["std"] / race["episodes"] ** 0.5, age / len(run["scores"])
            ax.errorbar(score["mean"], y, xerr=error, fmt="o", markersize=6, color=colour, alpha=alpha, capsize=2)
        ax.annotate(f"{score['mean']:,.0f}", (score["mean"], y), xytext=(0, 6), textcoords="offset points", ha="center")
    ax.set_yticks(list(places.values()), [trainer(peer) for peer in places])
    ax.set_ylim(0.2 - len(places), 0.9)
    minutes = " and ".join(f"{after:g}" for after in race["minutes"])
    processor = "a processor with bfloat16" if race["has_bfloat16"] else "a processor without bfloat16"
    ax.set_title(f"{race['environment']}, {minutes} minutes, {processor}", fontsize=10)
    only_x(ax)


def trainer(peer: str) -> str:
    """How a trainer of a race is named: whose it is, and its algorithm."""
    algorithm = peer.removeprefix("apex_acer_").removeprefix("sb3_")
    whose = "SB3" if peer.startswith("sb3_") else "apex_acer"
    return f"{whose}, {ALGORITHMS.get(algorithm, algorithm.upper())}"


def only_x(ax: Axes) -> None:
    """Keeps the x axis and a grid for it; what stands beside the rows is their names."""
    ax.grid(axis="x", color="#DDDDDD", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    ax.tick_params(axis="x", color=GREY, labelcolor=GREY)


def png(figure: Figure) -> bytes:
    """A figure as a PNG file."""
    FigureCanvasAgg(figure)
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def redraw() -> None:
    """Writes the figures."""
    (RESULTS / "published-atari.png").write_bytes(draw_published())
    (RESULTS / "published-atari-minutes.png").write_bytes(draw_published_minutes())
    (RESULTS / "acer-learners.png").write_bytes(draw_learners())
    (RESULTS / "peers.png").write_bytes(draw_races())
    (RESULTS / "race.png").write_bytes(draw_minutes())
