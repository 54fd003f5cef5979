"""What the manager must know of an engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from apex_acer.config import RunConfig
from apex_acer.messages import Link, Peer
from apex_acer.result import TrainResult
from apex_acer.trajectory import EnvironmentSpec


@dataclass(frozen=True)
class Run:
    """What every role of a run is started with."""

    config: RunConfig
    spec: EnvironmentSpec
    folder: Path
    run_id: str
    started_at: float
    """Unix seconds at which the program started."""


class Handle(ABC):
    """A role that was started."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.ready = False
        """Set once the role has what it needs to work."""
        self.result: TrainResult | None = None
        """A learner's, once it has saved."""
        self.config_error: str = ""
        """Why the role cannot work as configured."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether it still runs."""

    @property
    @abstractmethod
    def failure(self) -> str:
        """The traceback, or how it died; empty where it ended well or still runs."""

    @abstractmethod
    def release(self) -> None:
        """Lets it know that it is no longer needed."""

    @abstractmethod
    def kill(self) -> None:
        """Ends it at once; nothing is saved."""


class Engine(ABC):
    """Starts roles, and waits for them."""

    link: Link
    """The manager's side of the conversation; there once the learner is started."""

    @abstractmethod
    def __init__(self, run: Run) -> None: ...

    @abstractmethod
    def start(self, peer: Peer) -> Handle:
        """Starts a role."""

    @abstractmethod
    def wait(self, timeout_s: float) -> None:
        """Returns after `timeout_s` seconds, or earlier where a role ended, spoke or `wake` was called."""

    @abstractmethod
    def wake(self) -> None:
        """Ends a `wait`; safe in a signal handler."""

    @abstractmethod
    def close(self) -> None:
        """Kills what still runs and leaves nothing behind."""
