"""One process of a run through all its incarnations: whether it is running, has ended or hangs, and how often it died."""

from __future__ import annotations

import dataclasses
import time

from apex_acer.engines.engine import Handle
from apex_acer.protocol.messages import Peer

READY_S = 300.0  # importing torch takes long on a cold machine, and longer if 64 actors do it at once


class SupervisedProcess:
    """One actor, the evaluator or the learner, through all its incarnations."""

    def __init__(self, peer: Peer, patience_s: float, max_unanswered: int = 1, key: str = "hung_seconds") -> None:
        """It hangs if it makes no progress for `patience_s` seconds with fewer than `max_unanswered` messages unanswered.

        Progress is a message, or a step of its environments. `key` of `supervision` says how long it may take.
        """
        self.peer = peer  # the incarnation that is running, or the next to start
        self.handle: Handle | None = None  # None until that incarnation is started
        self.start_at = 0.0  # monotonic seconds before which it is not started
        self.left_at = 0.0  # monotonic seconds at which it was found to have ended well; 0 if it has not
        self.dumped_at = 0.0  # monotonic seconds at which it was asked where it hangs; 0 if it was not
        self.died_of = ""  # why the previous incarnation died, in one line; empty if it ended well or there was none
        self.patience_s, self._key = patience_s, f"supervision.{key}"
        self._max_unanswered = max_unanswered
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
        if self.handle is None and self.died_of:
            return f"dead: {self.died_of}"
        if self.handle is not None and not self.handle.alive:
            return "ended"
        if self.handle is not None and self.handle.ready:
            return "running"
        return "restarting" if self.peer.incarnation else "starting"

    @property
    def hangs(self) -> str:
        """What it failed to do in time; empty if it does not hang."""
        is_ready = self._progress[0]
        limit_s = self.patience_s if is_ready else READY_S
        if self._idle_s <= limit_s:
            return ""
        return f"no progress for {limit_s:g} s ({self._key})" if is_ready else f"not ready for {limit_s:g} s"

    def note(self, elapsed_s: float, messages: int, unanswered: int) -> None:
        """Notes after `elapsed_s` more seconds how many `messages` it has sent, of which `unanswered` still wait."""
        if self.handle is None:
            return
        progress = (self.handle.ready, messages, self.handle.heartbeats)
        # the first message asks for weights, and the process can do nothing without them
        waits = unanswered >= (self._max_unanswered if messages > 1 else 1)
        self._idle_s = 0.0 if waits or progress != self._progress else self._idle_s + elapsed_s
        self._progress = progress

    def reset_idle_time(self) -> None:
        """Forgets the time without progress: there was no learner to make progress with."""
        self._idle_s = 0.0

    def count_death(self, window_s: float) -> int:
        """Counts a death; returns how many there were within the last `window_s` seconds."""
        now = time.monotonic()
        self._deaths = [*(at for at in self._deaths if now - at < window_s), now]
        return len(self._deaths)

    def schedule_restart(self, delay_s: float, died_of: str = "") -> None:
        """Has the next incarnation start in `delay_s` seconds; `died_of` is the cause of this one's death, if it died."""
        self.died_of = died_of
        self.peer = dataclasses.replace(self.peer, incarnation=self.peer.incarnation + 1)
        self.handle, self.start_at = None, time.monotonic() + delay_s
        self.left_at = self.dumped_at = self._idle_s = 0.0
        self._progress = (False, 0, 0)
