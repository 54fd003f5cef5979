"""Writes docs/metrics.md, docs/configuration.md and docs/images/rooms.svg from the code: `make docs`."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import typing
from pathlib import Path

from apex_acer import config as configuration
from apex_acer.cli.flags import field_docs
from apex_acer.config import settings_classes
from apex_acer.protocol.metrics import GRADIENT, METRICS, Metric
from docs import rooms

HERE = Path(__file__).parent
GENERATED = "Written by `make docs` from the code; change it there."


def metrics_page() -> str:
    """Every metric with its unit, its meaning, who writes it and where it is drawn."""
    head = [
        "# Metrics",
        "",
        GENERATED,
        "",
        "The same names are in TensorBoard (`tb/<process>/`) and in `metrics.jsonl`. A run's last row follows the one",
        "before whenever the run ends; if that is at once, it has no rates (units in `/ s`).",
        "",
        "*Of*: the processes that write it; `client` is a [remote client with a name](remote.md#train). *Drawn in*: its",
        "figure of `apex-acer plot`, and its chart of the dashboard. A metric of your own algorithm needs no entry: it",
        "has a panel in the figure `learner`.",
        "",
        "| metric | unit | of | drawn in | algorithms | meaning |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *(_metric_line(name, metric) for name, metric in METRICS.items()), ""])


def _metric_line(name: str, metric: Metric) -> str:
    figure = f"`{metric.figure}`" if metric.figure else ""
    drawn = ", ".join(filter(None, [figure, metric.chart[1]])) or "–"
    without = ", ".join(
        name for name, settings in settings_classes().items() if not getattr(settings, metric.needs, True)
    )
    with_key = f"all but {without}" if metric.needs == GRADIENT else f"with `{metric.needs}`"
    algorithms = ", ".join(metric.only) or (with_key if metric.needs else "all")
    cells = [f"`{name}`", metric.unit, ", ".join(metric.by), drawn, algorithms, metric.meaning]
    return f"| {' | '.join(cells)} |"


def configuration_page() -> str:
    """Every key with its default and meaning."""
    lines = [
        "# Configuration",
        "",
        GENERATED,
        "",
        "Keys of a run file; each is a flag too: `--algorithm.unroll-length 10`.",
    ]
    short = "`--actors`, `--steps` (`stop.env_steps`), `--until` (`stop.at_return`), `--minutes` and `--log-level`"
    lines.append(f"Short forms: {short}.")
    return "\n".join([*lines, *_section(configuration.RunConfig(), ""), ""])


def _section(values: typing.Any, prefix: str) -> list[str]:
    cls = type(values)
    described = field_docs(cls)
    fields = [(f.name, getattr(values, f.name)) for f in dataclasses.fields(cls)]
    own = [(name, value) for name, value in fields if not _is_common(values, name)]
    plain = [(name, value) for name, value in own if not dataclasses.is_dataclass(value)]
    lines = [
        "",
        f"## {_title(values, prefix)}",
        "",
        (inspect.getdoc(cls) or "").partition("\n\n")[0],
        "",
        "| key | default | meaning |",
        "|---|---|---|",
    ]
    lines += [f"| `{prefix}{name}` | `{value!r}` | {described[name]} |" for name, value in plain]
    for name, value in fields:
        if isinstance(value, configuration.AlgorithmConfig):
            of_each = [cls() for cls in configuration.settings_classes().values()]
            sections = (_section(each, f"{prefix}{name}.") for each in [configuration.AlgorithmConfig(), *of_each])
            lines += itertools.chain.from_iterable(sections)
        elif dataclasses.is_dataclass(value):
            lines += _section(value, f"{prefix}{name}.")
    return lines


def _is_common(values: typing.Any, name: str) -> bool:
    """Whether an algorithm has the key `name` from all algorithms, with their default: these have a table of their own."""
    common, cls = configuration.AlgorithmConfig(), type(values)
    is_known = isinstance(values, configuration.AlgorithmConfig) and cls is not type(common) and hasattr(common, name)
    same = is_known and getattr(values, name) == getattr(common, name)
    return (name == "name" and is_known) or (same and field_docs(cls)[name] == field_docs(type(common))[name])


def _title(values: typing.Any, prefix: str) -> str:
    name = prefix.rstrip(".") or "run"
    if not isinstance(values, configuration.AlgorithmConfig):
        return name
    return f"{name} of {values.name}" if values.name else f"{name}, keys of all"


def pages() -> dict[Path, str]:
    """Paths and texts of the generated pages and pictures."""
    written = {
        "metrics.md": metrics_page(),
        "configuration.md": configuration_page(),
        "images/rooms.svg": rooms.picture(),
    }
    return {HERE / name: text for name, text in written.items()}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
