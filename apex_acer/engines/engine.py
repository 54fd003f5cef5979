"""What the manager must know of an engine."""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from apex_acer.config import RunConfig
from apex_acer.protocol.messages import Link, Peer
from apex_acer.protocol.outcome import Outcome
from apex_acer.protocol.specification import EnvironmentSpec


@dataclass(frozen=True)
class Run:
    """What every role of a run is started with."""

    config: RunConfig
    spec: EnvironmentSpec
    folder: Path
    run_id: str
    started_at: float
    """Seconds of `time.monotonic`, which is the machine's, at which the program started."""
    resume: bool = False
    """Whether the learner goes on from the newest checkpoint in `folder`."""
    notes: tuple[str, ...] = ()
    """What the user is told of the environment, a line each."""


class Handle(ABC):
    """A role that was started."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.ready = False
        """Set once the role has what it needs to work."""
        self.result: Outcome | None = None
        """A learner's, once it has saved."""
        self.config_error: str = ""
        """Why the role cannot work as configured."""
        self.raised: str = ""
        """The exception that ended it, in one line."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether it still runs."""

    @property
    @abstractmethod
    def failure(self) -> str:
        """The traceback, or how it died; empty where it ended well or still runs."""

    @abstractmethod
    def dump(self) -> None:
        """Has it write where it is, if it still can; returns at once."""

    @abstractmethod
    def kill(self) -> None:
        """Ends it at once; nothing is saved."""


class Engine(ABC):
    """Starts roles, and waits for them."""

    restarts: bool
    """Whether a role that died can be started again."""
    link: Link
    """The manager's side of the conversation; a new one with each learner that is started."""

    @abstractmethod
    def __init__(self, run: Run) -> None: ...

    @abstractmethod
    def start(self, peer: Peer, incarnations: dict[str, int]) -> Handle:
        """Starts a role; its last incarnation, if it had one, has ended.

        A learner will hear the others in these `incarnations`, by name, until it is told of others; one after the first
        resumes.
        """

    @abstractmethod
    def reconnect(self) -> None:
        """Tells everybody where the newest learner is, for whom they leave the one before."""

    @abstractmethod
    def wait(self, timeout_s: float) -> None:
        """Returns after `timeout_s` seconds, or earlier where a role ended, spoke or `wake` was called."""

    @abstractmethod
    def wake(self) -> None:
        """Ends a `wait`; safe in a signal handler."""

    @abstractmethod
    def close(self) -> None:
        """Kills what still runs and leaves nothing behind."""


def one_line(error: BaseException) -> str:
    """As a traceback ends: the exception's type and message."""
    return " ".join("".join(traceback.format_exception_only(error)).split())[:300]
