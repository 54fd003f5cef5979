"""What a learner reports: rows of metrics, which go into the run's files, and the status that the manager shows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from apex_acer.config import RunConfig
from apex_acer.learner.counters import Counters
from apex_acer.learner.inbox import Inbox
from apex_acer.learner.ranks import Ranks
from apex_acer.protocol.messages import Row
from apex_acer.protocol.metrics import MIN_INTERVAL, RATES, Means, Timers
from apex_acer.storage.writers import Writers
from apex_acer.system import imports


class Reporter:
    """Writes the rows of actors, evaluator and learner, and gives `inbox` a new status with each of them.

    Of several learners only the first one writes; the others send it their actors' rows when its own row is due.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        counters: Counters,
        network: nn.Module,
        inbox: Inbox,
        figures: Callable[[], Row],
        status: Callable[[], dict[str, Any]],
        ranks: Ranks,
        *,
        resume: bool = False,
    ) -> None:
        """With `resume` the files are continued from the checkpoint that `counters` was restored from."""
        self._config, self._counters, self._network, self._inbox, self._ranks = config, counters, network, inbox, ranks
        self._figures, self._status = figures, status
        resumed_at = counters.env_steps if resume else None
        self._writers = Writers(folder, resumed_at, counters.rows_length) if ranks.rank == 0 else None
        if self._writers:
            self._writers.describe(config)
        callback = config.learner.callback if ranks.rank == 0 else ""
        self._callback = imports.load("learner.callback", callback) if callback else None
        self._unsent: list[tuple[str, Row, int]] = []  # rows for the first learner
        self.timers, self.means = Timers(), Means()
        """The learner's own, emptied into its rows."""
        self._rows: dict[str, Row] = {}  # the newest of each process, by name
        self._row_at, self._updates_at_row = time.monotonic(), counters.updates
        self._histograms_due = 0.0  # monotonic seconds
        inbox.status = self.status()  # the manager hears one before the first row, even of a run that ends at once

    @property
    def length(self) -> int:
        """Bytes of the rows so far."""
        return self._writers.length if self._writers else 0

    @property
    def due(self) -> bool:
        """Whether it is time for the learner's next row, `logging.every_seconds` after the last one."""
        return self._elapsed_s >= self._config.logging.every_seconds

    def log(self, source: str, row: Row, env_steps: int | None = None) -> None:
        """Writes a row of the process `source`; it is of `env_steps` of the run, by default of now."""
        self._write(source, row, self._counters.env_steps if env_steps is None else env_steps)
        self._inbox.status = self.status()

    def log_learner(self) -> Row:
        """Writes the learner's own row and returns it.

        The last row of a run has no rates if the one before was written just now.
        """
        row = {**self.means.take(), **self.timers.shares(), **self._figures()}
        row["updates_per_s"] = (self._counters.updates - self._updates_at_row) / max(self._elapsed_s, 1e-9)
        if "learner" in self._rows and self._elapsed_s < MIN_INTERVAL * self._config.logging.every_seconds:
            row = {name: value for name, value in row.items() if name not in RATES}
        for sent in self._ranks.collect(json.dumps(self._unsent).encode()):
            for other in json.loads(sent) if self._writers else ():
                self._write(*other)
        self._unsent = []
        self._row_at, self._updates_at_row = time.monotonic(), self._counters.updates
        if self._writers:
            with self.timers.phase("saving"):
                self._write("learner", row, self._counters.env_steps)
                self._write_histograms(self._writers)
        self._inbox.status = self.status()
        return row

    def show(self, row: Row) -> None:
        """Shows the learner's row to the user's callback, which may raise anything."""
        if self._callback:
            with torch.no_grad():
                self._callback(self._counters.env_steps, dict(row), self._network)

    def status(self) -> dict[str, Any]:
        """Live figures for the manager, and the newest rows."""
        return {**self._status(), "rows": self._rows}

    def close(self) -> None:
        if self._writers:
            self._writers.close()

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._row_at

    def _write(self, source: str, row: Row, env_steps: int) -> None:
        if self._writers:
            self._writers.write(source, env_steps, self._counters.clock.wall_s, row)
            self._rows = {**self._rows, source: {**self._rows.get(source, {}), **row}}
        else:
            self._unsent.append((source, row, env_steps))

    def _write_histograms(self, writers: Writers) -> None:
        every = self._config.logging.histograms_every_seconds
        if every and time.monotonic() >= self._histograms_due:
            writers.write_histograms(self._counters.env_steps, self._network)
            self._histograms_due = time.monotonic() + every
