"""One role of a run through all its incarnations: whether it runs, has ended or hangs."""

from __future__ import annotations

import dataclasses
import time

from apex_acer.engines.engine import Handle
from apex_acer.protocol.messages import Peer

READY_S = 300.0  # importing torch takes its time on a cold machine, and longer where 64 actors do it at once


class Role:
    """One role of the run through all its incarnations."""

    def __init__(self, peer: Peer, patience_s: float, credit: int = 1) -> None:
        """It hangs when nothing happens for `patience_s` seconds while fewer than `credit` of its messages wait."""
        self.peer = peer
        """The incarnation that runs, or is the next to start."""
        self.handle: Handle | None = None
        """None until it is started."""
        self.start_at = 0.0
        """Not before these monotonic seconds."""
        self.left_at = 0.0
        """Since these monotonic seconds it has ended well; 0: it has not."""
        self.dumped_at = 0.0
        """When it was asked where it hangs; 0: it was not."""
        self.died_of = ""
        """Why the incarnation before ended, in one line; empty where it ended well, or there was none."""
        self.patience_s = patience_s
        self._credit = credit
        self._idle_s = 0.0
        self._progress = (False, 0)

    @property
    def alive(self) -> bool:
        """Whether its incarnation was started and still runs."""
        return self.handle is not None and self.handle.alive

    @property
    def ended_well(self) -> bool:
        """Whether it ran, and left because it was told to."""
        return self.handle is not None and not self.handle.alive and not self.cause

    @property
    def cause(self) -> str:
        """Of its death, in one line; empty where it ended well, runs, or has yet to start."""
        if self.handle is None or self.handle.result:
            return ""
        how = self.handle.failure.rpartition("\n")[2].removeprefix(f"{self.peer.name}: ")
        return self.handle.raised or self.handle.config_error or how

    @property
    def state(self) -> str:
        """`starting`, `running`, `ended`, `restarting`, or `dead: ` and why, until it is started again."""
        if self.handle is None and self.died_of:
            return f"dead: {self.died_of}"
        if self.handle is not None and not self.handle.alive:
            return "ended"
        if self.handle is not None and self.handle.ready:
            return "running"
        return "restarting" if self.peer.incarnation else "starting"

    @property
    def hangs(self) -> str:
        """What it did not do in time; empty where it may go on."""
        limit_s = self.patience_s if self._progress[0] else READY_S
        if self._idle_s <= limit_s:
            return ""
        return f"{'no progress' if self._progress[0] else 'not ready'} for {limit_s:g} s"

    def note(self, elapsed_s: float, messages: int, unanswered: int) -> None:
        """`elapsed_s` more seconds, after which it has said so many `messages`, of which `unanswered` wait."""
        if self.handle is None:
            return
        progress = (self.handle.ready, messages)
        # the first message asks for the weights without which nothing can be done
        waits = unanswered >= (self._credit if messages > 1 else 1)
        self._idle_s = 0.0 if waits or progress != self._progress else self._idle_s + elapsed_s
        self._progress = progress

    def forgive(self) -> None:
        """It has not been idle so far."""
        self._idle_s = 0.0

    def succeed(self, delay_s: float, died_of: str = "") -> None:
        """The next incarnation is to start in `delay_s` seconds, after one that `died_of` something or ended well."""
        self.died_of = died_of
        self.peer = dataclasses.replace(self.peer, incarnation=self.peer.incarnation + 1)
        self.handle, self.start_at = None, time.monotonic() + delay_s
        self.left_at = self.dumped_at = self._idle_s = 0.0
        self._progress = (False, 0)
