"""One process of a run through all its incarnations: whether it runs, has ended or hangs, and how often it died."""

from __future__ import annotations

import dataclasses
import time

from apex_acer.engines.engine import Handle
from apex_acer.protocol.messages import Peer

READY_S = 300.0  # importing torch takes long on a cold machine, and longer if 64 actors do it at once


class SupervisedProcess:
    """One actor, the evaluator or the learner, through all its incarnations."""

    def __init__(self, peer: Peer, patience_s: float, max_unanswered: int = 1, key: str = "hung_seconds") -> None:
        """The process hangs after `patience_s` seconds without progress, unless `max_unanswered` messages are unanswered.

        Progress is a message, or a step of its environments. `key` of `supervision` says how long it may take.
        """
        self.peer = peer  # the incarnation that is running, or the next to start
        self.handle: Handle | None = None  # None until that incarnation is started
        # monotonic seconds: before which it is not started, at which it ended well, and was asked where it hangs; or 0
        self.start_at = self.left_at = self.dumped_at = 0.0
        self.died_of = ""  # why the previous incarnation died, in one line; empty if it ended well or there was none
        self.patience_s, self._max_unanswered, self._key = patience_s, max_unanswered, f"supervision.{key}"
        self._deaths: list[float] = []  # monotonic seconds of the recent ones
        self._idle_s = 0.0
        self._progress = (False, 0, 0)

    @property
    def cause(self) -> str:
        """The cause of death in one line; empty if it ended well, is running, or has not started."""
        if self.handle is None or self.handle.result:
            return ""
        how = self.handle.failure.rpartition("\n")[2].removeprefix(f"{self.peer.name}: ")
        return self.handle.raised or self.handle.config_error or how

    @property
    def state(self) -> str:
        """`starting`, `running`, `ended`, `restarting`, or `dead: ` with the cause, until it is restarted."""
        if self.handle is None:
            state = f"dead: {self.died_of}" if self.died_of else ""
        else:
            state = "ended" if not self.handle.alive else "running" if self.handle.ready else ""
        return state or ("restarting" if self.peer.incarnation else "starting")

    @property
    def hangs(self) -> str:
        """What it failed to do in time; empty if it does not hang."""
        is_ready = self._progress[0]
        limit_s = self.patience_s if is_ready else READY_S
        if self._idle_s <= limit_s:
            return ""
        return f"no progress for {limit_s:g} s ({self._key})" if is_ready else f"not ready for {limit_s:g} s"

    def note(self, elapsed_s: float, messages: int, unanswered: int) -> None:
        """Takes note, `elapsed_s` after the last call, that it has sent `messages`, of which some are `unanswered`."""
        if self.handle is None:
            return
        progress = (self.handle.ready, messages, self.handle.heartbeats)
        # the first message asks for weights, and the process can do nothing without them
        waits = unanswered >= (self._max_unanswered if messages > 1 else 1)
        self._idle_s = 0.0 if waits or progress != self._progress else self._idle_s + elapsed_s
        self._progress = progress

    def reset_idle_time(self) -> None:
        """Drops the time without progress, in which there was no learner to make progress with."""
        self._idle_s = 0.0

    def count_death(self, window_s: float) -> int:
        """Counts a death; returns how many there were within the last `window_s` seconds."""
        now = time.monotonic()
        self._deaths = [*(at for at in self._deaths if now - at < window_s), now]
        return len(self._deaths)

    def deaths_within(self, seconds: float) -> int:
        """Number of counted deaths within the last `seconds`."""
        return sum(time.monotonic() - at < seconds for at in self._deaths)

    def schedule_restart(self, delay_s: float, died_of: str = "") -> None:
        """Has the next incarnation start in `delay_s` seconds; `died_of` is the cause of this one's death, if it died."""
        self.died_of = died_of
        self.peer = dataclasses.replace(self.peer, incarnation=self.peer.incarnation + 1)
        self.handle, self.start_at = None, time.monotonic() + delay_s
        self.left_at = self.dumped_at = self._idle_s = 0.0
        self._progress = (False, 0, 0)
