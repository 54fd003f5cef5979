"""A run's progress: environment steps, updates and seconds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from apex_acer.config import require


class RunClock:
    """The seconds of a run from its first environment step on, without the time between a stop and a resume."""

    def __init__(self, run_id: str, started_at: float) -> None:
        """`started_at` is when the program `run_id` began, in seconds of `time.monotonic`, as are all times here."""
        self._run_id, self._started_at = run_id, started_at
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
        """Notes that an actor made its first step `acting_s` seconds ago; the clock starts at the earliest first step.

        If the actor already acted for an earlier learner, that time was counted by that learner.
        """
        at = time.monotonic() - acting_s
        startup_s = max(0.0, at - self._started_at)
        self.startup_s = min(self.startup_s or startup_s, startup_s)
        at = max(at, self._resumed_at)
        self._first_step_at = min(self._first_step_at or at, at)

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        return {"wall_s": self.wall_s, "run_id": self._run_id, "startup_s": self.startup_s}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from a `state`; a learner that was restarted within the same program keeps its `startup_s`."""
        self._before_s, self._resumed_at = float(state["wall_s"]), time.monotonic()
        same = str(state["run_id"]) == self._run_id
        self.startup_s = float(state["startup_s"]) if same else 0.0


SAVED = "env_steps", "updates", "skipped", "rows_length"


@dataclass
class Counters:
    """What a learner counts; saved with the run."""

    clock: RunClock
    env_steps: int = 0
    updates: int = 0
    skipped: int = 0
    """Updates that were skipped because they were not finite."""
    skipped_in_a_row: int = 0
    rows_length: int = 0
    """Bytes of the run's rows on disk when it was saved."""

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        return {name: getattr(self, name) for name in SAVED} | self.clock.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from a `state`; raises `ConfigError` if its step count is too large for TensorBoard."""
        for name in SAVED:
            setattr(self, name, int(state[name]))
        self.clock.restore(state)
        require(0 <= self.env_steps < 2**62, "env_steps", self.env_steps, "it is no count that curves can hold")
