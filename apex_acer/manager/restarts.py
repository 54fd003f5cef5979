"""Decides whether a process that died is restarted, and after which pause."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import NamedTuple

from apex_acer.engines.engine import Engine, Handle, Run
from apex_acer.storage.checkpoint import newest
from apex_acer.storage.folder import where

BACKOFF_S = 0.5  # pause before the first restart within the window, doubled for each further one ...
DOUBLINGS = 4  # ... at most this often


class Restart(NamedTuple):
    """The consequence of a death."""

    number: int  # deaths of the process within the window, this one included
    delay_s: float  # until its next incarnation starts
    refused: str  # why it is not restarted; empty if it is


class Restarts:
    """Counts the deaths of each process against the limits in `supervision`."""

    def __init__(self, run: Run, engine: Engine) -> None:
        self._settings, self._folder, self._engine = run.config.supervision, run.folder, engine
        self._deaths: dict[str, list[float]] = defaultdict(list)
        self._raised_early: set[tuple[str, str]] = set()  # roles, and what they raised before the first unroll

    def after(self, handle: Handle, *, early: bool) -> Restart:
        """The consequence of the death of the process of `handle`; `early`: the learner has accepted no unroll yet."""
        name, now = handle.peer.name, time.monotonic()
        recent = [at for at in self._deaths[name] if now - at < 60 * self._settings.window_minutes]
        self._deaths[name] = [*recent, now]
        number = len(recent) + 1
        return Restart(number, BACKOFF_S * 2 ** min(number - 1, DOUBLINGS), self._refusal(handle, number, early))

    def _refusal(self, handle: Handle, deaths: int, early: bool) -> str:
        is_learner, settings = handle.peer.role == "learner", self._settings
        if not self._engine.restarts:
            return "this engine restarts no process"
        if is_learner and handle.raised:  # a full disk, for example, or numbers that are no longer finite
            return "it would end like this again"
        if is_learner and newest(where(self._folder)) is None:
            return "there is no checkpoint to continue from"
        if early and handle.raised and self._raised_before(handle):
            return "the same error came before, and no unroll was accepted yet"
        if deaths > settings.restarts:
            times = f"{deaths} times within {settings.window_minutes:g} minutes"
            return f"it ended {times}, supervision.restarts allows {settings.restarts}"
        return ""

    def _raised_before(self, handle: Handle) -> bool:
        """Whether a process of the same role has raised the same before, as a mistake in an environment makes them do."""
        cause = (handle.peer.role, handle.raised)
        again = cause in self._raised_early
        self._raised_early.add(cause)
        return again
