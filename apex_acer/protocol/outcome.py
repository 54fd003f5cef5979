"""How a run ended, as plain data: what the learner sums up and engines carry. Torch-free."""

from __future__ import annotations

import signal
from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
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
        return f"{type(self).__name__}(reason={self.reason!r}, {counts}, eval_return={score}, folder={self.folder!r})"

    @property
    def exit_code(self) -> int:
        """0, or 128 plus the signal's number."""
        return 128 + signal.Signals[self.reason] if self.reason.startswith("SIG") else 0
