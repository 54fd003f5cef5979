"""Messages between processes: a peer sends a `Message` to the learner's inbox and gets one `Reply`."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

from apex_acer.protocol.unroll import Unroll

Role = Literal["actor", "evaluator", "manager", "learner"]
ROLES: tuple[Role, ...] = get_args(Role)
Row = dict[str, float]
"""Metric names (`metrics.py`) and their values."""
Status = dict[str, Any]
"""State of a run: the newest rows by process name, counters, and other values for views and callbacks."""


@dataclass(frozen=True)
class Peer:
    """Sender of messages. Its incarnation is the number of times that it was started before."""

    role: Role
    index: int
    incarnation: int

    @property
    def name(self) -> str:
        """Name in logs, metrics and folders: `actor_0`, `evaluator`."""
        return f"actor_{self.index}" if self.role == "actor" else self.role


@dataclass(frozen=True)
class Message:
    """A peer's message to the learner; `sequence` counts the messages of an incarnation from 0, without gaps."""

    run_id: str
    peer: Peer
    sequence: int
    weights_version: int = -1
    """Version of the weights that the peer acts with; −1: it has none yet."""
    wants_weights: bool = False
    rows: list[Row] = field(default_factory=list)
    clients: dict[str, Row] = field(default_factory=dict)
    """With `rows` of an actor of remote clients: the row of each client that has a name."""
    unroll: Unroll | None = None
    unlearned_steps: int = 0
    """With `unroll`: environment steps that are not in it, such as the ones after the end of a whole episode."""
    slot: int = 0
    """With `unroll`: index of the environment of its first sequence, if it has not all environments of the actor."""
    acting_s: float = 0.0
    """Seconds since the actor's first environment step, by the actor's clock."""
    stop: str = ""
    """From the manager only: the reason to end the run; empty: the run goes on."""
    incarnations: dict[str, int] = field(default_factory=dict)
    """From the manager only: the current incarnations of peers, by name."""

    @property
    def num_steps(self) -> int:
        """Environment steps that the message reports, learned from or not, without autoreset steps."""
        return self.unroll.num_steps + self.unlearned_steps if self.unroll else 0


@dataclass(frozen=True)
class Reply:
    """The learner's reply to the message with the number `sequence`."""

    sequence: int
    stop: bool = False
    weights_version: int = -1
    weights: bytes | None = None
    """Bytes of a safetensors file, if the peer asked for weights and there are newer ones."""
    env_steps: int = 0
    """With `weights`: environment steps that the run has made."""
    confirms: bool = False
    """With `weights` to evaluate: whether this is a second evaluation of them, with other episodes."""
    refused: str = ""
    """Why the message was refused; empty if it was not."""
    status: Status = field(default_factory=dict)
    """To the manager only: the state of the run."""


class Link(Protocol):
    """A peer's connection to the learner; replies come in the order of the messages."""

    def send(self, message: Message) -> None:
        """Sends `message` without waiting."""

    def receive(self, timeout_s: float) -> Reply | None:
        """The next reply, or None if there is none within `timeout_s` seconds."""

    def heartbeat(self) -> None:
        """Tells of progress; called after each environment step, so that a slow step does not count as a hang."""
        return None  # noqa: RET501 - not abstract


@dataclass(frozen=True)
class Outcome:
    """The end of a run, as plain data."""

    reason: str
    """Why the run ended: `env_steps`, `minutes`, `at_return`, or a signal: `SIGINT`, `SIGTERM`, `SIGHUP`."""
    env_steps: int
    updates: int
    wall_s: float
    """Seconds from the first environment step to the decision to stop."""
    startup_s: float
    """Seconds from the program's start to the first environment step."""
    eval_return: float | None
    """Mean return of the last evaluation, or of the saved weights if `stop.at_return` was reached; None: no evaluation."""
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
        """0; 128 plus the number of the signal that ended the run; or 1 if every update was skipped."""
        if self.reason.startswith("SIG"):
            return 128 + signal.Signals[self.reason]
        return 1 if self.skipped_updates and not self.updates else 0

    @property
    def warning(self) -> str:
        """A warning that updates were skipped or never made, in one line; empty if there is none."""
        if skipped := self.skipped_updates:
            which = (
                f"{skipped:,} of {self.updates + skipped:,}"
                if self.updates
                else f"nothing was learned: all {skipped:,}"
            )
            why = "rewards or observations may be too large, or the learning rate too high"
            return f"{which} updates were skipped because they were not finite: {why}"
        if not self.updates and not self.reason.startswith("SIG"):
            return "nothing was learned: no update was made; give more steps, or a lower replay.start"
        return ""
