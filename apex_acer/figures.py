"""What the figures of runs show: their panels, and the lines of one run or of groups of runs in them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from apex_acer.config import ConfigError
from apex_acer.curves import EMPTY, Curve, Line, Panel, band, mean, single
from apex_acer.history import History, read_rows
from apex_acer.metrics import METRICS
from apex_acer.output import printable
from apex_acer.runfile import load_run, short_keys, short_text, to_dict

log = logging.getLogger(__name__)

X_LABELS = {"env_steps": "environment steps", "wall_s": "wall-clock time (s)"}
OWN_KEYS = ("seed", "out", "load")  # runs that differ only in these are of one group
MOST_SOURCES = 8  # with a line of their own
MOST_KEYS = 3  # that name a group, if as many are enough


class Chart(NamedTuple):
    """A panel of one run; of several runs, a panel for each metric."""

    kind: str
    """Of the sources: `learner`, `evaluator` or `actor`."""
    metrics: tuple[str, ...]


class Figure(NamedTuple):
    """One file."""

    title: str
    over: str
    """A key of `X_LABELS`."""
    charts: tuple[Chart, ...]


class Run(NamedTuple):
    """What there is to draw of a run."""

    folder: Path
    config: dict[str, Any]
    """Values by dotted key."""
    history: History


LEARNING = (
    *("loss", "policy_loss", "q_loss"),
    *("entropy", "average_policy_kl", "trust_region_share"),
    *("grad_norm", "value", "q_ret"),
    *("q_taken", "q_target", "td_error"),
)
FIGURES = {
    "returns": Figure(
        "Returns", "env_steps", (Chart("evaluator", ("eval_return",)), Chart("actor", ("episode_return",)))
    ),
    "learner": Figure("Learner", "env_steps", tuple(Chart("learner", (metric,)) for metric in LEARNING)),
    "throughput": Figure(
        "Throughput", "wall_s", (Chart("learner", ("env_steps_per_s",)), Chart("learner", ("updates_per_s",)))
    ),
    "time": Figure(
        "Where time goes",
        "wall_s",
        (
            Chart("learner", ("time_learning", "time_taking", "time_saving", "time_waiting")),
            Chart("actor", ("time_environment", "time_policy", "time_waiting")),
        ),
    ),
    "lag": Figure("Policy lag", "env_steps", (Chart("actor", ("policy_lag",)), Chart("learner", ("policy_lag",)))),
}
"""By the name of their file."""


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """The runs in `folders`, each once; those without rows yet are left out, with a warning.

    Raises:
        ConfigError: where no folder is given, one holds no run, or none of the runs has rows.
    """
    if not folders:
        raise ConfigError("plot: no folder; give those of one or more runs")
    runs = [_read(folder) for folder in {folder.resolve(): folder for folder in folders}.values()]
    found = [run for run in runs if run.history]
    if not found:
        raise ConfigError(f"plot: {', '.join(map(str, folders))}: no metrics yet; try again once the run trains")
    for run in runs:
        if not run.history:
            log.warning("%s: no metrics yet, left out", printable(str(run.folder)))
    return found


def make_panels(figure: Figure, runs: Sequence[Run]) -> list[Panel]:
    """The panels with data in them: sources of one run, or groups of several, each by its median and quartiles."""
    if len(runs) == 1:
        drawn = ((chart, _lines_of_run(chart, figure.over, runs[0])) for chart in figure.charts)
    else:
        groups = group(runs)
        charts = (Chart(chart.kind, (metric,)) for chart in figure.charts for metric in chart.metrics)
        drawn = ((chart, _lines_of_groups(chart, figure.over, groups)) for chart in charts)
    x_label = X_LABELS[figure.over]
    return [
        Panel(x_label, lines, _y_label(chart), _title(chart))
        for chart, lines in drawn
        if any(len(line.x) for line in lines)
    ]


def make_title(figure: Figure, runs: Sequence[Run]) -> str:
    """Names the run, or the environments of several."""
    if len(runs) == 1:
        return f"{figure.title}: {runs[0].folder.absolute().name}"
    ids = list(dict.fromkeys(run.config["environment.id"] for run in runs))
    where = ", ".join(ids) if len(ids) <= MOST_KEYS else f"{len(ids)} environments"
    several = any(len(members) > 1 for members in group(runs).values())
    return f"{figure.title}: {where}{' (median and quartiles over the runs of a line)' if several else ''}"


def group(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs that differ in nothing but seed, `out` and `load`, under a name of what differs between the groups."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(repr(_settings(run)), []).append(run)
    members = list(groups.values())
    names = _names([_settings(runs[0]) for runs in members])
    counts = (f"{len(runs)} run{'s' if len(runs) > 1 else ''}" for runs in members)
    return {f"{name} ({count})".strip(): runs for name, count, runs in zip(names, counts, members, strict=True)}


def _read(folder: Path) -> Run:
    file = folder / "config.toml"
    if not file.is_file():
        raise ConfigError(f"plot: {str(folder)!r} holds no config.toml; give the folder of a run")
    try:
        return Run(folder, dict(_flat(to_dict(load_run(str(file))))), History(read_rows(folder / "metrics.jsonl")))
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be read ({error.strerror})") from None


def _flat(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _settings(run: Run) -> dict[str, Any]:
    return {key: value for key, value in run.config.items() if key not in OWN_KEYS}


def _names(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """What differs between `settings`; where that is much, the first keys that tell them apart."""
    keys = [key for key in dict.fromkeys(key for each in settings for key in each) if _count(settings, [key]) > 1]
    if len(keys) > MOST_KEYS:
        chosen: list[str] = []
        for key in keys:
            if _count(settings, [*chosen, key]) > _count(settings, chosen):
                chosen.append(key)
        keys = chosen
    short = short_keys(keys)
    return [", ".join(f"{short[key]}={short_text(each.get(key))}" for key in keys) for each in settings]


def _count(settings: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> int:
    """How many of `settings` can be told apart by `keys`."""
    return len({repr([each.get(key) for key in keys]) for each in settings})


def _curves(run: Run, kind: str, metric: str, over: str) -> dict[str, Curve]:
    """Those with any points, by source."""
    curves = {source: run.history.log(source).curve(metric, over) for source in run.history.sources(kind)}
    return {source: curve for source, curve in curves.items() if len(curve[0])}


def _lines_of_run(chart: Chart, over: str, run: Run) -> list[Line]:
    """A line for each metric, or of one metric for each source."""
    found = {metric: _curves(run, chart.kind, metric, over) for metric in chart.metrics}
    if len(chart.metrics) > 1:
        return [single(metric, mean(list(curves.values()))) for metric, curves in found.items() if curves]
    curves = found[chart.metrics[0]]
    if len(curves) > MOST_SOURCES:
        return [band(f"{len(curves)} {chart.kind}s: median and quartiles", list(curves.values()))]
    return [single(source, curve) for source, curve in curves.items()]


def _lines_of_groups(chart: Chart, over: str, groups: Mapping[str, Sequence[Run]]) -> list[Line]:
    """A line for each group, empty where it has no data, so that a group has its colour in every figure.

    A run counts with the mean of its sources.
    """
    found = {name: [_curves(run, chart.kind, chart.metrics[0], over) for run in runs] for name, runs in groups.items()}
    means = {name: [mean(list(each.values())) for each in curves if each] for name, curves in found.items()}
    return [
        band(name, curves) if len(curves) > 1 else single(name, curves[0] if curves else EMPTY)
        for name, curves in means.items()
    ]


def _y_label(chart: Chart) -> str:
    if len(chart.metrics) > 1:
        return f"share of the time ({METRICS[chart.metrics[0]].unit})"
    unit = METRICS[chart.metrics[0]].unit
    return chart.metrics[0] if unit == "1" else f"{chart.metrics[0]} ({unit})"


def _title(chart: Chart) -> str:
    return {"actor": "actors"}.get(chart.kind, chart.kind)
