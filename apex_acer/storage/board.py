"""TensorBoard files: the rows of a process, and in the learner's folder also charts, configuration and histograms."""

from __future__ import annotations

import dataclasses
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
from apex_acer.protocol.metrics import written

Charts = dict[str, dict[str, tuple[str, ...]]]
CHARTS: Charts = {
    "Actors and evaluator": {
        "Return": ("episode_return", "eval_return"),
        "Episode length": ("episode_length", "eval_length"),
        "Environment steps per second": ("env_steps_per_s",),
        "Policy lag": ("policy_lag",),
    },
    "Losses and values": {
        "Policy loss": ("policy_loss",),
        "Q loss": ("q_loss",),
        "Value loss": ("value_loss",),
        "Value and its target": ("value", "q_ret", "q_opc", "q_target"),
        "TD error": ("td_error",),
        "Learning rate": ("learning_rate",),
        "Gradient norm": ("grad_norm",),
    },
    "Trust region": {
        "Share of samples it changed": ("trust_region_share",),
        "KL from the average policy": ("average_policy_kl",),
        "KL from the policy that acted": ("behaviour_kl",),
        "Share of ratios that are clipped, of the natural step": ("clipped_share", "step_scale"),
    },
    "Exploration": {
        "Entropy": ("entropy",),
        "Standard deviation of actions": ("action_std",),
        "Temperature of the entropy": ("temperature",),
        "Reward for curiosity": ("intrinsic_reward",),
        "Losses of curiosity": ("forward_loss", "inverse_loss"),
    },
    "Throughput and waiting": {
        "Updates per second": ("updates_per_s",),
        "Replayed per fresh step": ("replay_ratio",),
        "Share of time waiting": ("time_waiting",),
        "Share of time learning": ("time_learning",),
    },
}
"""Metrics by category and chart; a chart has a line for each process that writes one of its metrics."""
BINS = 30  # of a histogram; TensorBoard shows no more than that


class Board:
    """The TensorBoard folder of one process; each write reaches the file at once.

    tensorboardX's SummaryWriter would not do: its thread dies when the disk is full, and later writes then wait forever.
    """

    def __init__(self, folder: Path, anew_from: int | None) -> None:
        """`anew_from`: a resumed run writes its events anew from this many environment steps on."""
        folder.mkdir(parents=True, exist_ok=True)
        # two files made within a second need two names
        self._events = EventsWriter(str(folder / "events"), "" if anew_from is None else f".{anew_from}")
        if anew_from is not None:  # TensorBoard hides what came at or after this step
            self._events.write_event(Event(step=anew_from, session_log=SessionLog(status=SessionLog.START)))

    def write(self, env_steps: int, row: Mapping[str, float]) -> None:
        """Writes `row` at `env_steps`."""
        self.add(env_steps, Summary(value=[Summary.Value(tag=name, simple_value=row[name]) for name in row]))

    def add(self, env_steps: int, *summaries: Summary) -> None:
        """Writes `summaries` at `env_steps`."""
        for what in summaries:
            self._events.write_event(Event(wall_time=time.time(), step=env_steps, summary=what))
        self._events.flush()

    def close(self) -> None:
        """Closes the file."""
        self._events.close()


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
    """The part of `CHARTS` to which a run with these settings of the algorithm writes metrics."""
    chosen = {
        category: {title: names for title, names in charts.items() if any(written(name, algorithm) for name in names)}
        for category, charts in CHARTS.items()
    }
    return {category: charts for category, charts in chosen.items() if charts}


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
