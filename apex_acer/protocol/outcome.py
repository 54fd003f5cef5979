"""How a run ended, as plain data. Torch-free."""

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
    """Seconds from the first environment step to the decision to stop."""
    startup_s: float
    """Seconds from the program's start to the first environment step."""
    eval_return: float | None
    """Mean return of the last evaluation; if `stop.at_return` was reached, that of the weights written."""
    weights: str
    """Path of the weights file; empty if a second signal ended the run before it was written."""
    folder: str
    """The run's folder."""
    skipped_updates: int = 0
    """Updates that were skipped because they were not finite."""

    def __repr__(self) -> str:
        score = None if self.eval_return is None else round(self.eval_return, 2)
        counts = f"env_steps={self.env_steps}, updates={self.updates}, wall_s={round(self.wall_s, 1)}"
        return f"{type(self).__name__}(reason={self.reason!r}, {counts}, eval_return={score}, folder={self.folder!r})"

    @property
    def exit_code(self) -> int:
        """0, or 128 plus the signal's number if one ended the run, or 1 if every update was skipped."""
        if self.reason.startswith("SIG"):
            return 128 + signal.Signals[self.reason]
        return 1 if self.skipped_updates and not self.updates else 0

    @property
    def warning(self) -> str:
        """What was wrong with the run in one line; empty if nothing was."""
        if skipped := self.skipped_updates:
            total = self.updates + skipped
            which = f"{skipped:,} of {total:,}" if self.updates else f"nothing was learned: all {total:,}"
            why = "rewards or observations may be too large, or the learning rate too high"
            return f"{which} updates were skipped because they were not finite: {why}"
        if not self.updates and not self.reason.startswith("SIG"):
            return "nothing was learned: no update was made; give more steps, or a lower replay.start"
        return ""
