"""Who is started again, after which pause, and when a run has seen too many deaths."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import NamedTuple

from apex_acer.engines.engine import Engine, Handle, Run
from apex_acer.storage.checkpoint import newest

BACKOFF_S = 0.5  # before the first restart within the window; each further one waits twice as long ...
DOUBLINGS = 4  # ... this often


class Restart(NamedTuple):
    """What follows a death."""

    number: int
    """Deaths of the role within the window, this one included."""
    delay_s: float
    """Seconds before its next incarnation starts."""
    refused: str
    """Why there is none; empty if there is one."""


class Restarts:
    """Counts the deaths of every role against what `supervision` allows."""

    def __init__(self, run: Run, engine: Engine) -> None:
        self._settings, self._folder, self._engine = run.config.supervision, run.folder, engine
        self._deaths: dict[str, list[float]] = defaultdict(list)
        self._raised_early: set[tuple[str, str]] = set()  # roles, and what they raised before the first unroll came

    def after(self, handle: Handle, *, early: bool) -> Restart:
        """What follows the death of what `handle` ran; `early`: the learner has accepted no unroll yet."""
        number = self._count_death(handle.peer.name)
        return Restart(number, BACKOFF_S * 2 ** min(number - 1, DOUBLINGS), self._refusal(handle, number, early))

    def _count_death(self, name: str) -> int:
        now = time.monotonic()
        recent = [at for at in self._deaths[name] if now - at < 60 * self._settings.window_minutes]
        self._deaths[name] = [*recent, now]
        return len(self._deaths[name])

    def _refusal(self, handle: Handle, deaths: int, early: bool) -> str:
        is_learner, settings = handle.peer.role == "learner", self._settings
        if not self._engine.restarts:
            return "this engine restarts nobody"
        if is_learner and handle.raised:  # as where the disk is full, or nothing is finite any more
            return "it would end like this again"
        if is_learner and newest(self._folder) is None:
            return "there is no checkpoint to go on from"
        if early and handle.raised and self._raised_before(handle):
            return "the same came before, and no unroll was accepted yet"
        if deaths > settings.restarts:
            times = f"{deaths} times within {settings.window_minutes:g} minutes"
            return f"it ended {times}, supervision.restarts allows {settings.restarts}"
        return ""

    def _raised_before(self, handle: Handle) -> bool:
        """Whether a role of its kind has raised the same, as a mistake in an environment does."""
        cause = (handle.peer.role, handle.raised)
        again = cause in self._raised_early
        self._raised_early.add(cause)
        return again
