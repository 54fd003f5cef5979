"""Writes metrics, in the learner's process, to one JSONL file and to a TensorBoard folder for each process.

The learner's TensorBoard folder has the layout of the charts, the configuration and histograms, too.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from torch import Tensor, nn

from apex_acer.config import AlgorithmConfig, RunConfig
from apex_acer.config.runfile import dump_run, flat
from apex_acer.protocol.metrics import METRICS, written
from apex_acer.storage.folder import where
from apex_acer.system import files

Charts = dict[str, dict[str, list[str]]]
"""Metrics by category and chart; a chart has a line for each process that writes one of its metrics."""
BINS = 30  # of a histogram; TensorBoard shows no more than that


class Writers:
    """Writes rows of metrics to `folder/metrics.jsonl` and `folder/tb/<source>/`; each reaches the files at once.

    tensorboardX's SummaryWriter would not do: its thread dies when the disk is full, and later writes then wait forever.
    """

    def __init__(self, folder: Path, resumed_at: int | None = None, length: int = 0) -> None:
        """Appends to files that exist; a run `resumed_at` an environment step keeps the first `length` bytes of the rows."""
        self._folder = folder
        path = folder / "metrics.jsonl"
        if resumed_at is not None and path.exists():
            kept = path.read_bytes()[:length]
            files.write(path, kept[: kept.rfind(b"\n") + 1])
        self._resumed_at = resumed_at
        self._jsonl = path.open("a", encoding="utf-8", buffering=1)
        self._boards: dict[str, EventsWriter] = {}

    def write(self, source: str, env_steps: int, wall_s: float, row: Mapping[str, float]) -> None:
        """Writes one row of `source` (`learner`, `evaluator`, `actor_<i>`) at `env_steps` of the run."""
        finite = {name: value if math.isfinite(value) else None for name, value in row.items()}
        key = {"source": source, "env_steps": env_steps, "wall_s": round(wall_s, 3)}
        line = json.dumps(key | finite | key)  # a user's algorithm may name a metric like a key
        with files.naming(self._folder):
            self._jsonl.write(f"{line}\n")
        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in row.items()]
        self._add(source, env_steps, Summary(value=scalars))

    def describe(self, config: RunConfig) -> None:
        """Writes the layout of the dashboard and the run's configuration to the learner's TensorBoard folder."""
        self._add("learner", self._resumed_at or 0, *description(config))

    def write_histograms(self, env_steps: int, network: nn.Module) -> None:
        """Writes the histograms of `network` to the learner's TensorBoard folder."""
        self._add("learner", env_steps, *histograms(network))

    @property
    def length(self) -> int:
        """Bytes of the rows so far."""
        return self._jsonl.tell()

    def close(self) -> None:
        for board in self._boards.values():
            board.close()
        self._boards.clear()
        self._jsonl.close()

    def _add(self, source: str, env_steps: int, *summaries: Summary) -> None:
        with files.naming(self._folder):
            board = self._board(source)
            for each in summaries:
                board.write_event(Event(wall_time=time.time(), step=env_steps, summary=each))
            board.flush()

    def _board(self, source: str) -> EventsWriter:
        if source not in self._boards:
            folder, restart = where(self._folder) / "tb" / source, self._resumed_at
            folder.mkdir(parents=True, exist_ok=True)
            if restart is not None and source != "learner":  # it may have written at this same step after the save
                restart += 1
            # two files made within a second need two names
            board = EventsWriter(str(folder / "events"), "" if restart is None else f".{restart}")
            if restart is not None:  # TensorBoard hides what came at or after this step
                board.write_event(Event(step=restart, session_log=SessionLog(status=SessionLog.START)))
            self._boards[source] = board
        return self._boards[source]


def description(config: RunConfig) -> tuple[Summary, ...]:
    """Summaries for the dashboard: the layout of the charts, the configuration and the hyper-parameters.

    TensorBoard itself finds the hyper-parameters that differ between runs, as long as no run declares their names.
    """
    layout = {
        category: {title: ["Multiline", [f"^{name}$" for name in names]] for title, names in charts.items()}
        for category, charts in charts_of(config.algorithm).items()
    }
    config = dataclasses.replace(config, out="")  # it differs between any two runs
    text = summary.text("config", f"```toml\n{dump_run(config)}```")
    _names, values, _end = summary.hparams(flat(config), {})
    return summary.custom_scalars(layout), text, values


def charts_of(algorithm: AlgorithmConfig) -> Charts:
    """The charts for the metrics that a run with these settings of the algorithm writes."""
    charts: Charts = {}
    for name, metric in METRICS.items():
        category, title = metric.chart
        if title:
            charts.setdefault(category, {}).setdefault(title, []).append(name)
    chosen = {
        category: {title: names for title, names in titled.items() if any(written(name, algorithm) for name in names)}
        for category, titled in charts.items()
    }
    return {category: titled for category, titled in chosen.items() if titled}


def histograms(network: nn.Module) -> Iterator[Summary]:
    """Histograms of each layer's weights and of its newest gradients, except those that are not finite."""
    for name, parameter in network.named_parameters():
        for kind, values in {"weights": parameter, "gradients": parameter.grad}.items():
            if values is not None and values.isfinite().all():
                yield _histogram(f"{kind}/{name}", values.detach())


def _histogram(name: str, values: Tensor) -> Summary:
    low, high = values.min().item(), values.max().item()
    counts = torch.histc(values, BINS, low, high).tolist()
    limits = torch.linspace(low, high, BINS + 1)[1:].tolist()
    total, squares = values.sum().item(), values.square().sum().item()
    return summary.histogram_raw(name, low, high, values.numel(), total, squares, limits, counts)
