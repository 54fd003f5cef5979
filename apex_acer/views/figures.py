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

X_LABELS = {"env_steps": "environment steps", "wall_s": "wall-clock time (s)"}
OWN_KEYS = ("seed", "out", "load")  # runs that differ only in these form a group
MOST_SOURCES = 8  # the most that each get a line of their own
FIRST_KEYS = ("algorithm.name", "environment.id")  # these come first in a group's name
MOST_OWN = 60  # the most panels of metrics that are not in the table; an image has an end
MOST_KEYS = 3  # the most keys in a group's name
SHORT = 0.5  # a run below this share of its group's longest run is short


class Figure(NamedTuple):
    """The figure in one file. Metrics say which one draws them."""

    title: str
    by: tuple[str, ...]
    """The kinds of process that it shows, in this order."""
    over: str = "env_steps"
    """A key of `X_LABELS`."""
    together: str = ""
    """What the metrics of a process of one run are, if one panel has them all; each metric has a panel of its own: empty."""


class DrawnRun(NamedTuple):
    """A run to draw."""

    folder: Path
    config: dict[str, Any]
    """The configuration's values by dotted key."""
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
    "returns": Figure("Returns", ("evaluator", "actor")),
    "learner": Figure("Learner", ("learner", "actor", "evaluator")),
    "throughput": Figure("Throughput", ("learner",), over="wall_s"),
    "time": Figure("Where time goes", ("learner", "actor"), over="wall_s", together="share of the time"),
    "lag": Figure("Policy lag", ("actor", "learner")),
}
"""The figures by file name."""


def read_runs(folders: Sequence[Path]) -> list[DrawnRun]:
    """The runs in `folders`, each once; runs that cannot be read or have no rows yet are left out, with a warning.

    Raises:
        ConfigError: if no folder is given, or if none holds a run with rows; then it is the first folder's error.
    """
    if not folders:
        raise ConfigError("plot: no folder is given; give the folders of one or more runs")
    found, errors = [], []
    for folder in {folder.resolve(): folder for folder in folders}.values():
        try:
            found.append(_read(folder))
        except ConfigError as error:
            errors.append(error)
    if not found:
        raise errors[0]
    for what in errors:
        log.warning("%s; left out", printable(str(what)))
    _warn_of_short(found)
    return found


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
        panels.append(Panel(X_LABELS[figure.over], lines, label, "actors" if kind == "actor" else kind))
    return [panel for panel in panels if not all(line.is_empty for line in panel.lines)]


def _charts(name: str, runs: Sequence[DrawnRun]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The kind of process and the metrics of each panel; those that are not in the table come last."""
    figure = FIGURES[name]
    for kind in figure.by:
        own = sorted({metric for run in runs for metric in run.history.metrics(kind)} - METRICS.keys())
        if name == OWN.figure and len(own) > MOST_OWN:
            log.warning("%s: %s metrics are not in the table; the first %s are drawn", kind, len(own), MOST_OWN)
        entries = {metric: METRICS.get(metric, OWN) for metric in (*METRICS, *own[:MOST_OWN])}
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

    The name has the algorithm and the environment if they differ, then the other keys that differ between groups with the
    same algorithm and environment; if these are more than three, the folder's name instead.
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
    alike = {head: [runs for runs, own in zip(groups, heads, strict=True) if own == head] for head in heads}
    tails = {head: iter(_tails(members)) for head, members in alike.items()}
    several = len(alike) > 1 or len(groups) == 1
    return [", ".join(filter(None, [*(head if several else ()), next(tails[head])])) for head in heads]


def _tails(groups: Sequence[Sequence[DrawnRun]]) -> list[str]:
    settings = [_settings(runs[0]) for runs in groups]
    keys = [key for key in dict.fromkeys(key for each in settings for key in each) if _differs(settings, key)]
    if len(keys) > MOST_KEYS:
        return [_folder_name(runs, [run for runs in groups for run in runs]) for runs in groups]
    short = short_keys(keys)
    return [", ".join(f"{short[key]}={short_text(each.get(key))}" for key in keys) for each in settings]


def _folder_name(runs: Sequence[DrawnRun], among: Sequence[DrawnRun]) -> str:
    """The folder of `runs`, or of the first run if that folder has other runs, too; relative to the folder of all."""
    own = _shared_folder(runs)
    if any(run not in runs and run.folder.resolve().is_relative_to(own) for run in among):
        return f"{runs[0].folder.resolve().relative_to(_shared_folder(among))} …"
    return str(own.relative_to(_shared_folder(among)))


def _shared_folder(runs: Sequence[DrawnRun]) -> Path:
    return Path(os.path.commonpath([run.folder.resolve() for run in runs]))


def _differs(settings: Sequence[Mapping[str, Any]], key: str) -> bool:
    return len({repr(each.get(key)) for each in settings}) > 1


def _curves(run: DrawnRun, kind: str, metric: str, over: str) -> dict[str, Curve]:
    """The curves that have points, by source."""
    curves = {source: run.history.log(source).curve(metric, over) for source in run.history.sources(kind)}
    return {source: curve for source, curve in curves.items() if len(curve[0])}


def _lines_of_run(kind: str, metrics: Sequence[str], over: str, run: DrawnRun) -> list[Line]:
    """A line for each metric or, if there is only one metric, for each process."""
    found = {metric: _curves(run, kind, metric, over) for metric in metrics}
    if len(metrics) > 1:
        return [single(metric, mean(list(curves.values()))) for metric, curves in found.items() if curves]
    curves = found[metrics[0]]
    if len(curves) > MOST_SOURCES:
        return [band(f"{len(curves)} {kind}s: median and quartiles", list(curves.values()))]
    return [single(source, curve) for source, curve in curves.items()]


def _line_of_group(kind: str, metric: str, over: str, name: str, runs: Sequence[DrawnRun]) -> Line:
    """The line of a group; each of its runs counts with the mean of its processes."""
    others: list[Curve] = []
    reached: list[Curve] = []
    for run in runs:
        sources = _curves(run, kind, metric, over)
        curve = mean(list(sources.values())) if sources else EMPTY
        if len(curve[0]):
            held = run.at_target and kind == "evaluator"  # other metrics would not stay the same
            (reached if held else others).append(curve)
    if len(others) + len(reached) > 1:
        return band(name, others, reached)
    return single(name, [*others, *reached, EMPTY][0])


def _y_label(metric: str, together: str) -> str:
    unit, name = METRICS.get(metric, OWN).unit, together or metric
    return name if unit == "1" else f"{name} ({unit})"
