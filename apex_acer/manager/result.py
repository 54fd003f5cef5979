"""What `train` returns. Imports no torch before the policy is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from apex_acer.config import ConfigError
from apex_acer.config.imports import needs
from apex_acer.config.runfile import look_at_run
from apex_acer.protocol.outcome import Outcome
from apex_acer.storage.history import History, Log, read_rows

if TYPE_CHECKING:
    from apex_acer.actor.policy import Policy

END = "result.json"
"""The file in a run's folder that says how it ended: its `state` (`ended` by itself, `stopped` by a signal or `failed`), the
`reason` or `error`, and unless it failed all that `TrainResult` has. It is not there while the run goes on."""


@dataclass(frozen=True, repr=False)
class TrainResult(Outcome):
    """The end of a run, with its policy, its logs and its figures."""

    @cached_property
    def policy(self) -> Policy:
        """The policy trained, from `weights`; what it names of the user's own is imported, as the run did.

        Raises:
            ConfigError: where the run ended before its weights were written, or they cannot be read.
        """
        from apex_acer.actor.policy import load_policy

        if not self.weights:
            raise ConfigError(f"weights: {self.reason} ended the run in {self.folder!r} before they were written")
        return load_policy(self.weights, import_modules=True)

    @property
    def learner_log(self) -> Log:
        """The learner's rows: metric -> `[L]`."""
        return self._history.log("learner")

    @property
    def actor_logs(self) -> list[Log]:
        """Every actor's rows, in the order of their numbers; empty for one that wrote none."""
        count = look_at_run(Path(self.folder) / "config.toml").actors.count
        return [self._history.log(f"actor_{index}") for index in range(count)]

    @property
    def evaluator_log(self) -> Log:
        """The evaluator's rows; empty where nothing was evaluated."""
        return self._history.log("evaluator")

    def plot(self, out: str | Path = "") -> list[Path]:
        """Draws what the run has logged into `out`, by default `plots/` in its folder; the paths written.

        Raises:
            ConfigError: where matplotlib is not installed, the run has no rows, or `out` cannot be written.
        """
        with needs("plot", "plot"):
            from apex_acer.views.plots import plot_runs
        return plot_runs([self.folder], out)

    @cached_property
    def _history(self) -> History:
        return History(read_rows(Path(self.folder) / "metrics.jsonl"))
