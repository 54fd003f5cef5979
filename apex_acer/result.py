"""How a run ended: what the learner sums up and `train` returns. Imports no torch before the policy is asked for."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from apex_acer.config import ConfigError
from apex_acer.history import History, Log, read_rows
from apex_acer.imports import missing
from apex_acer.runfile import load_run

if TYPE_CHECKING:
    from apex_acer.policy import Policy

END = "result.json"
"""The file in a run's folder that says how it ended: its `state` (`ended` by itself, `stopped` by a signal or `failed`), the
`reason` or `error`, and unless it failed all that `TrainResult` has. It is not there while the run goes on."""


@dataclass(frozen=True)
class TrainResult:
    """The end of a run."""

    reason: str
    """`env_steps`, `minutes`, `at_return`, or the signal: `SIGINT`, `SIGTERM`, `SIGHUP`."""
    env_steps: int
    updates: int
    wall_s: float
    """First environment step to the stop decision."""
    startup_s: float
    """Start of the program to the first environment step."""
    eval_return: float | None
    """Of the last evaluation; with `stop.at_return` reached, of the weights written."""
    weights: str
    """Path of the weights file; empty where a second signal ended the run before it was written."""
    folder: str
    """The run's."""
    skipped_updates: int = 0
    """Updates that were not finite and so not applied."""

    def __repr__(self) -> str:
        """One line without what the folder tells anyway; logs hold it, too."""
        score = None if self.eval_return is None else round(self.eval_return, 2)
        counts = f"env_steps={self.env_steps}, updates={self.updates}, wall_s={round(self.wall_s, 1)}"
        return f"TrainResult(reason={self.reason!r}, {counts}, eval_return={score}, folder={self.folder!r})"

    @property
    def exit_code(self) -> int:
        """0, or 128 plus the signal's number."""
        return 128 + signal.Signals[self.reason] if self.reason.startswith("SIG") else 0

    @cached_property
    def policy(self) -> Policy:
        """The policy trained, from `weights`; a torso of the user's own is imported, as the run did.

        Raises:
            ConfigError: where the run ended before its weights were written, or they cannot be read.
        """
        from apex_acer.policy import load_policy

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
        count = load_run(Path(self.folder) / "config.toml").actors.count
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
        try:
            from apex_acer.plots import plot_runs
        except ModuleNotFoundError as error:
            raise missing("plot", "plot", error) from None
        return plot_runs([self.folder], out)

    @cached_property
    def _history(self) -> History:
        return History(read_rows(Path(self.folder) / "metrics.jsonl"))
