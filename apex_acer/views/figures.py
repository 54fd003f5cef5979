"""The contents of the figures of runs: panels, and in them the lines of one run or of groups of runs."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from apex_acer.config import ConfigError
from apex_acer.config.runfile import leaves, look_at_run, short_keys, short_text, to_dict
from apex_acer.protocol.metrics import METRICS, OWN
from apex_acer.storage.history import EMPTY, Curve, History, read_rows
from apex_acer.system.output import printable
from apex_acer.views.curves import Line, Panel, band, mean, single

log = logging.getLogger(__name__)

PLURAL = {"actor": "actors", "client": "clients"}
X_LABELS = {"env_steps": "environment steps", "wall_s": "wall-clock time (s)"}
OWN_KEYS = ("seed", "out", "load")  # runs that differ only in these form a group
MOST_SOURCES = 8  # the most that are drawn as a line each
FIRST_KEYS = ("algorithm.name", "environment.id")  # these come first in a group's name
MOST_OWN = 60  # the most panels of metrics that are not in the table
MOST_KEYS = 3  # the most keys in a group's name
SHORT = 0.5  # a run below this share of its group's longest run is short


class Figure(NamedTuple):
    """A file of panels; `METRICS` says which metrics it draws."""

    title: str
    by: tuple[str, ...]
    """Kinds of process to show, in this order."""
    over: str = "env_steps"
    """Key of `X_LABELS`."""
    together: str = ""
    """Label of the panel that has all metrics of a kind of process of a single run; empty: a panel for each metric."""


class DrawnRun(NamedTuple):
    """A run to draw; `config` has its configuration by dotted key."""

    folder: Path
    config: dict[str, Any]
    history: History

    @property
    def env_steps(self) -> int:
        logs = map(self.history.log, ("learner", *self.history.sources("actor")))
        return int(max((log["env_steps"][-1] for log in logs if log), default=0))

    @property
    def at_target(self) -> bool:
        """Whether the run stopped at its target: its last evaluation reached it."""
        _, scores = self.history.log("evaluator").curve("eval_return")
        target = self.config.get("stop.at_return")
        return target is not None and len(scores) > 0 and bool(scores[-1] >= target)


FIGURES = {
    "returns": Figure("Returns", ("evaluator", "actor", "client")),
    "learner": Figure("Learner", ("learner", "actor", "evaluator")),
    "throughput": Figure("Throughput", ("learner",), over="wall_s"),
    "time": Figure("Where time goes", ("learner", "actor"), over="wall_s", together="share of the time"),
    "lag": Figure("Policy lag", ("actor", "learner")),
}
"""The figures by file name."""


def read_runs(folders: Sequence[Path]) -> list[DrawnRun]:
    """The runs in `folders`, each once; a run that cannot be read or has no rows yet is left out with a warning.

    Raises `ConfigError` if no folder is given, or the first folder's error if none has a run with rows.
    """
    if not folders:
        raise ConfigError("plot: no folder is given; give the folders of one or more runs")
    runs, errors = [], []
    for folder in {folder.resolve(): folder for folder in folders}.values():
        try:
            runs.append(_read(folder))
        except ConfigError as error:
            errors.append(error)
    if not runs:
        raise errors[0]
    for reason in errors:
        log.warning("%s; left out", printable(str(reason)))
    _warn_of_short(runs)
    return runs


def _warn_of_short(runs: Sequence[DrawnRun]) -> None:
    text = "%s has only %s env steps, and the lines of its group end there; leave it out to see more"
    for members in group(runs).values():
        most = max(run.env_steps for run in members)
        for run in members:
            if run.env_steps < SHORT * most and not run.at_target:
                log.warning(text, run.folder, f"{run.env_steps:,}")


def make_panels(name: str, runs: Sequence[DrawnRun]) -> list[Panel]:
    """The panels of figure `name` that have data: the processes of one run, or medians and quartiles of groups of runs."""
    figure, groups = FIGURES[name], group(runs)
    panels = []
    for kind, metrics in _charts(name, runs):
        if len(runs) == 1:
            lines = _lines_of_run(kind, metrics, figure.over, runs[0])
        else:  # a line for each group, even an empty one, so that a group has the same colour in every figure
            lines = [_line_of_group(kind, metrics[0], figure.over, *named) for named in groups.items()]
        label = _y_label(metrics[0], figure.together if len(metrics) > 1 else "")
        panels.append(Panel(X_LABELS[figure.over], lines, label, PLURAL.get(kind, kind)))
    return [panel for panel in panels if not all(line.is_empty for line in panel.lines)]


def _charts(name: str, runs: Sequence[DrawnRun]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The kind of process and the metrics of each panel; those that are not in the table come last."""
    figure = FIGURES[name]
    for kind in figure.by:
        unlisted = sorted({metric for run in runs for metric in run.history.metrics(kind)} - METRICS.keys())
        if name == OWN.figure and len(unlisted) > MOST_OWN:
            log.warning("%s: %s metrics are not in the table; the first %s are drawn", kind, len(unlisted), MOST_OWN)
        entries = {metric: METRICS.get(metric, OWN) for metric in (*METRICS, *unlisted[:MOST_OWN])}
        drawn = [metric for metric, entry in entries.items() if entry.figure == name and kind in entry.by]
        alone = [(kind, (metric,)) for metric in drawn]
        yield from [(kind, tuple(drawn))] if figure.together and len(runs) == 1 else alone


def make_title(name: str, runs: Sequence[DrawnRun]) -> str:
    """The title of figure `name` with the name of the run, or with the environments of several runs."""
    title = FIGURES[name].title
    if len(runs) == 1:
        return f"{title}: {runs[0].folder.absolute().name}"
    ids = list(dict.fromkeys(run.config["environment.id"] for run in runs))
    where = ", ".join(ids) if len(ids) <= MOST_KEYS else f"{len(ids)} environments"
    several = any(len(members) > 1 for members in group(runs).values())
    return f"{title}: {where}{' (median and quartiles over the runs of a line)' if several else ''}"


def group(runs: Sequence[DrawnRun]) -> dict[str, list[DrawnRun]]:
    """Groups of runs that differ only in seed, `out` and `load`, by a name that tells them apart.

    The name has the algorithm and the environment if they differ, then the keys that differ between groups of the same
    algorithm and environment, or the folder of the first run if these are more than three.
    """
    groups: dict[str, list[DrawnRun]] = {}
    for run in runs:
        groups.setdefault(repr(_settings(run)), []).append(run)
    members = list(groups.values())
    counts = (f"({len(runs)} run{'s' if len(runs) > 1 else ''})" for runs in members)
    return {f"{name} {count}": runs for name, count, runs in zip(_names(members), counts, members, strict=True)}


def _read(folder: Path) -> DrawnRun:
    file = folder / "config.toml"
    if not file.is_file():
        raise ConfigError(f"plot: {str(folder)!r} has no config.toml; give the folder of a run")
    try:
        config, rows = look_at_run(file), read_rows(folder / "metrics.jsonl")
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be read ({error.strerror})") from None
    if not rows:
        raise ConfigError(f"plot: {folder}: no metrics yet; try again once the run trains")
    return DrawnRun(folder, dict(leaves(to_dict(config))), History(rows))


def _settings(run: DrawnRun) -> dict[str, Any]:
    return {key: value for key, value in run.config.items() if key not in OWN_KEYS}


def _names(groups: Sequence[Sequence[DrawnRun]]) -> list[str]:
    settings = [_settings(runs[0]) for runs in groups]
    first = [key for key in FIRST_KEYS if _differs(settings, key)] or FIRST_KEYS[:1]
    heads = [tuple(each[key] for key in first) for each in settings]
    alike = {head: [runs for runs, other in zip(groups, heads, strict=True) if other == head] for head in heads}
    tails = {head: iter(_tails(members)) for head, members in alike.items()}
    several = len(alike) > 1 or len(groups) == 1
    return [", ".join(filter(None, [*(head if several else ()), next(tails[head])])) for head in heads]


def _tails(groups: Sequence[Sequence[DrawnRun]]) -> list[str]:
    settings = [_settings(runs[0]) for runs in groups]
    keys = [key for key in dict.fromkeys(key for each in settings for key in each) if _differs(settings, key)]
    if len(keys) > MOST_KEYS:
        first = [runs[0].folder.resolve() for runs in groups]
        shared = os.path.commonpath([folder.parent for folder in first])
        return [f"{folder.relative_to(shared)} …" for folder in first]
    short = short_keys(keys)
    return [", ".join(f"{short[key]}={short_text(each.get(key))}" for key in keys) for each in settings]


def _differs(settings: Sequence[Mapping[str, Any]], key: str) -> bool:
    return len({repr(each.get(key)) for each in settings}) > 1


def _curves(run: DrawnRun, kind: str, metric: str, over: str) -> dict[str, Curve]:
    """The curves that have points, by source."""
    curves = {source: run.history.log(source).curve(metric, over) for source in run.history.sources(kind)}
    return {source: curve for source, curve in curves.items() if len(curve[0])}


def _lines_of_run(kind: str, metrics: Sequence[str], over: str, run: DrawnRun) -> list[Line]:
    """A line for each metric or, if there is only one metric, for each process."""
    if len(metrics) > 1:
        by_metric = {metric: _curves(run, kind, metric, over) for metric in metrics}
        return [single(metric, mean(list(curves.values()))) for metric, curves in by_metric.items() if curves]
    curves = _curves(run, kind, metrics[0], over)
    if len(curves) > MOST_SOURCES:
        return [band(f"{len(curves)} {kind}s: median and quartiles", list(curves.values()))]
    return [single(source, curve) for source, curve in curves.items()]


def _line_of_group(kind: str, metric: str, over: str, name: str, runs: Sequence[DrawnRun]) -> Line:
    """The line of a group; each of its runs counts with the mean of its processes."""
    others: list[Curve] = []
    reached: list[Curve] = []
    for run in runs:
        sources = _curves(run, kind, metric, over)
        if sources and len((curve := mean(list(sources.values())))[0]):
            goes_on = run.at_target and kind == "evaluator"  # other metrics would not stay the same
            (reached if goes_on else others).append(curve)
    if len(others) + len(reached) > 1:
        return band(name, others, reached)
    return single(name, [*others, *reached, EMPTY][0])


def _y_label(metric: str, together: str) -> str:
    unit, name = METRICS.get(metric, OWN).unit, together or metric
    return name if unit == "1" else f"{name} ({unit})"
