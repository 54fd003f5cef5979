"""The result that `train` returns. Imports torch only if the policy is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from apex_acer.config import ConfigError
from apex_acer.config.runfile import look_at_run
from apex_acer.protocol.messages import Outcome
from apex_acer.storage.history import History, Log, read_rows
from apex_acer.system.imports import needs

if TYPE_CHECKING:
    from apex_acer.actor.policy import Policy

END = "result.json"
"""The file in a run's folder that says how the run ended: its `state` (`ended` by itself, `stopped` by a signal, or
`failed`), the `reason` or `error`, and unless it failed every field of `TrainResult`. A run that is going on has none."""


@dataclass(frozen=True, repr=False)
class TrainResult(Outcome):
    """How a run ended, with access to its policy, its logs and its curves."""

    @cached_property
    def policy(self) -> Policy:
        """The trained policy, loaded from `weights`; modules of the user's own that it names are imported.

        Raises `ConfigError` if the run ended before its weights were written, or they cannot be read.
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
        """Each actor's rows, by its index; an actor that wrote none has an empty log."""
        count = look_at_run(Path(self.folder) / "config.toml").actors.count
        return [self._history.log(f"actor_{index}") for index in range(count)]

    @property
    def evaluator_log(self) -> Log:
        """The evaluator's rows; empty if nothing was evaluated."""
        return self._history.log("evaluator")

    def plot(self, out: str | Path = "") -> list[Path]:
        """Draws the run's curves into `out`, by default `plots/` in its folder; returns the paths of the pictures.

        Raises `ConfigError` if matplotlib is not installed, the run has no rows, or `out` cannot be written.
        """
        with needs("plot", "plot"):
            from apex_acer.views.plots import plot_runs
        return plot_runs([self.folder], out)

    @cached_property
    def _history(self) -> History:
        return History(read_rows(Path(self.folder) / "metrics.jsonl"))
