"""A learner's counts of steps, updates and seconds, and its reports: rows of metrics, and the status for the manager."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from apex_acer.config import RunConfig, require
from apex_acer.learner.inbox import Inbox
from apex_acer.learner.ranks import Ranks
from apex_acer.protocol.messages import Row
from apex_acer.protocol.metrics import MIN_INTERVAL, RATES, Means, Timers
from apex_acer.storage.writers import Writers
from apex_acer.system import imports

SAVED = "env_steps", "updates", "skipped", "rows_length"


class Counters:
    """What a learner counts, and the seconds of the run without the time between a stop and a resume."""

    def __init__(self, run_id: str, started_at: float) -> None:
        """`started_at` is when the program `run_id` began, in seconds of `time.monotonic`, as are all times here."""
        self._run_id, self._started_at = run_id, started_at
        self.env_steps = self.updates = 0
        self.skipped = 0
        """Updates that were skipped because they were not finite."""
        self.skipped_in_a_row = 0
        self.rows_length = 0
        """Bytes of the run's rows on disk when it was saved."""
        self.startup_s = 0.0
        """Seconds from the program's start to its first environment step; 0: there was no step yet."""
        self._before_s = 0.0  # of the run before it was resumed
        self._resumed_at = 0.0
        self._first_step_at = 0.0  # 0: there was no step yet

    @property
    def wall_s(self) -> float:
        """Seconds from the run's first environment step until now."""
        return self._before_s + (time.monotonic() - self._first_step_at if self._first_step_at else 0.0)

    def note_first_step(self, acting_s: float) -> None:
        """Notes that an actor made its first step `acting_s` seconds ago; time counts from the earliest first step.

        If the actor already acted for an earlier learner, its time until the state that was restored is counted there.
        """
        at = time.monotonic() - acting_s
        startup_s = max(0.0, at - self._started_at)
        self.startup_s = min(self.startup_s or startup_s, startup_s)
        at = max(at, self._resumed_at)
        self._first_step_at = min(self._first_step_at or at, at)

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        counts = {name: getattr(self, name) for name in SAVED}
        times = {"wall_s": self.wall_s, "saved_at": time.monotonic(), "startup_s": self.startup_s}
        return {**counts, **times, "run_id": self._run_id}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from a `state`; raises `ConfigError` if its step count is too large for TensorBoard.

        A learner that was restarted within the same program keeps its `startup_s`, and its time goes on from that state.
        """
        for name in SAVED:
            setattr(self, name, int(state[name]))
        self._before_s, self._resumed_at = float(state["wall_s"]), time.monotonic()
        self.startup_s = 0.0
        if str(state["run_id"]) == self._run_id:
            self.startup_s = float(state["startup_s"])
            at = min(
                float(state["saved_at"]), time.monotonic()
            )  # Ray may start it on another machine, with another clock
            self._resumed_at = self._first_step_at = at
        require(0 <= self.env_steps < 2**62, "env_steps", self.env_steps, "give a count below 2^62")


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
        status: Callable[[], dict[str, Any]],
        ranks: Ranks,
        *,
        resume: bool = False,
    ) -> None:
        """Continues the files if `resume`, from the checkpoint that `counters` was restored from."""
        self._config, self._counters, self._network, self._inbox, self._ranks = config, counters, network, inbox, ranks
        self._status = status
        resumed_at = counters.env_steps if resume else None
        callback = config.learner.callback if ranks.rank == 0 else ""
        self._callback = imports.load("learner.callback", callback) if callback else None  # before any file is touched
        self._writers = Writers(folder, resumed_at, counters.rows_length) if ranks.rank == 0 else None
        if self._writers:
            self._writers.describe(config)
        self._unsent: list[tuple[str, Row, int]] = []  # rows for the first learner
        self.timers, self.means = Timers(), Means()  # of the learner; emptied into its rows
        self._rows: dict[str, Row] = {}  # the newest of each process, by name
        self._row_at, self._updates_at_row = time.monotonic(), counters.updates
        self._histograms_due = 0.0  # monotonic seconds
        inbox.status = self.status()  # there is one before the first row, even if the run ends at once

    @property
    def length(self) -> int:
        """Bytes of the rows so far."""
        return self._writers.length if self._writers else 0

    @property
    def due(self) -> bool:
        """Whether it is time for the learner's next row, `logging.every_seconds` after the last one."""
        return self._elapsed_s >= self._config.logging.every_seconds

    def log(self, source: str, row: Row, env_steps: int | None = None) -> None:
        """Writes a row of the process `source` at `env_steps` of the run, by default the present number."""
        self._write(source, row, self._counters.env_steps if env_steps is None else env_steps)
        self._inbox.status = self.status()

    def log_learner(self, figures: Row) -> Row:
        """Writes the learner's row, with `figures`, and returns it; it has no rates if it follows another at once."""
        row = {**self.means.take(), **self.timers.shares(), **figures}
        row["updates_per_s"] = (self._counters.updates - self._updates_at_row) / max(self._elapsed_s, 1e-9)
        if "learner" in self._rows and self._elapsed_s < MIN_INTERVAL * self._config.logging.every_seconds:
            row = {name: value for name, value in row.items() if name not in RATES}
        for rows in self._ranks.collect(json.dumps(self._unsent).encode()):
            for other in json.loads(rows) if self._writers else ():
                self._write(*other)
        self._unsent = []
        self._row_at, self._updates_at_row = time.monotonic(), self._counters.updates
        if self._writers:
            with self.timers.phase("saving"):
                self._write("learner", row, self._counters.env_steps)
                every = self._config.logging.histograms_every_seconds
                if every and time.monotonic() >= self._histograms_due:
                    self._writers.write_histograms(self._counters.env_steps, self._network)
                    self._histograms_due = time.monotonic() + every
        self._inbox.status = self.status()
        return row

    def show(self, row: Row) -> None:
        """Calls the user's callback, which may raise anything, with the learner's row."""
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
            self._writers.write(source, env_steps, self._counters.wall_s, row)
            self._rows = {**self._rows, source: {**self._rows.get(source, {}), **row}}
        else:
            self._unsent.append((source, row, env_steps))
