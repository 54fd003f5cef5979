"""How a run ended: what the learner sums up and `train` returns."""

from __future__ import annotations

import signal
from dataclasses import dataclass


@dataclass(frozen=True)
class TrainResult:
    """The end of a run."""

    reason: str
    """`env_steps`, `minutes`, `at_return`, or the signal: `SIGINT`, `SIGTERM`."""
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

    @property
    def exit_code(self) -> int:
        """0, or 128 plus the signal's number."""
        return 128 + signal.Signals[self.reason] if self.reason.startswith("SIG") else 0
