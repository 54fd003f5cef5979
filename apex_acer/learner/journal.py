"""What a run's processes tell of themselves: their rows go into files, the newest of each is kept to be shown."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch

from apex_acer.config import RunConfig, imports
from apex_acer.learner.counters import Counters
from apex_acer.learner.ranks import Ranks
from apex_acer.networks.torsos import Network
from apex_acer.protocol.messages import Row
from apex_acer.protocol.metrics import MIN_INTERVAL, RATES, Means, Timers
from apex_acer.storage.writers import Writers


class Journal:
    """Writes rows; those of the learner itself at most every `logging.every_seconds`.

    Of several learners the first one writes those of everybody's actors, when its own row is due.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        network: Network,
        ranks: Ranks,
        counters: Counters,
        *,
        resume: bool = False,
    ) -> None:
        """Rows are of what `counters` say as they are written; with `resume` the files go on from there."""
        self._counters = counters
        self._settings, self._network, self._ranks = config.logging, network, ranks
        resumed_at = counters.env_steps if resume else None
        self._writers = Writers(folder, resumed_at, counters.rows_length) if ranks.rank == 0 else None
        if self._writers:
            self._writers.describe(config)
        self._untold: list[tuple[str, Row, int]] = []  # to the learner that writes
        callback = config.learner.callback if ranks.rank == 0 else ""
        self._callback = imports.load("learner.callback", callback) if callback else None
        self.timers, self.means = Timers(), Means()
        """Of the learner, emptied into its rows."""
        self.rows: dict[str, Row] = {}
        """The newest of each process, by name."""
        self._row_at, self._updates_at_row = time.monotonic(), counters.updates
        self._histograms_due = 0.0  # monotonic seconds

    @property
    def length(self) -> int:
        """Bytes of the rows so far."""
        return self._writers.length if self._writers else 0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the learner's last row."""
        return time.monotonic() - self._row_at

    @property
    def due(self) -> bool:
        """Whether the learner's next row is."""
        return self.elapsed_s >= self._settings.every_seconds

    def note(self, source: str, row: Row, env_steps: int | None = None) -> None:
        """Writes a row of the process `source`, now or at `env_steps` of the run."""
        at = self._counters.env_steps if env_steps is None else env_steps
        if self._writers is None:
            self._untold.append((source, row, at))
            return
        self._writers.write(source, at, self._counters.clock.wall_s, row)
        self.rows = {**self.rows, source: {**self.rows.get(source, {}), **row}}

    def note_learner(self, facts: Row) -> None:
        """Writes the learner's row of `facts`, means and shares of time, and shows it to the user's own callback.

        The last row of a run has no rates if the one before was written just now.
        """
        row = {**self.means.take(), **self.timers.shares(), **facts, "updates_per_s": self._updates_per_s()}
        if "learner" in self.rows and self.elapsed_s < MIN_INTERVAL * self._settings.every_seconds:
            row = {name: value for name, value in row.items() if name not in RATES}
        self._hear_the_others()
        self._row_at, self._updates_at_row = time.monotonic(), self._counters.updates
        if not self._writers:
            return
        with self.timers.phase("saving"):
            self.note("learner", row)
            self._write_histograms(self._writers)
        if self._callback:
            with torch.no_grad():
                self._callback(self._counters.env_steps, dict(row), self._network)

    def _updates_per_s(self) -> float:
        return (self._counters.updates - self._updates_at_row) / max(self.elapsed_s, 1e-9)

    def _hear_the_others(self) -> None:
        """The first learner writes what the others' actors have told since its last row."""
        for told in self._ranks.collect(json.dumps(self._untold).encode()):
            for source, row, env_steps in json.loads(told) if self._writers else ():
                self.note(source, row, env_steps)
        self._untold = []

    def close(self) -> None:
        """Flushes and closes the files."""
        if self._writers:
            self._writers.close()

    def _write_histograms(self, writers: Writers) -> None:
        every = self._settings.histograms_every_seconds
        if every and time.monotonic() >= self._histograms_due:
            writers.write_histograms(self._counters.env_steps, self._network)
            self._histograms_due = time.monotonic() + every
