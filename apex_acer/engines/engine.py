"""The interface between the manager and an engine: what a role is started with, and what can be seen of it then."""

from __future__ import annotations

import dataclasses
import traceback
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apex_acer.config import RunConfig
from apex_acer.config.runfile import from_dict, to_dict
from apex_acer.protocol.messages import Link, Outcome, Peer
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.storage.folder import where
from apex_acer.system.imports import search_path


@dataclass(frozen=True)
class Run:
    """A checked run, as every engine gets it."""

    config: RunConfig
    spec: EnvironmentSpec
    folder: Path
    run_id: str
    started_at: float
    """When the program started, in seconds of `time.monotonic`, which all processes of a machine share."""
    resume: bool = False  # whether the learner continues from the newest checkpoint in `folder`
    notes: tuple[str, ...] = ()  # lines that tell the user what was understood of the environment
    secret: str = ""  # a line that only a terminal may show; empty if there is none

    def start_of(self, peer: Peer, incarnations: dict[str, int], **more: object) -> dict[str, Any]:
        """What the process of `peer` is started with, as JSON has it: the run, the peer, and `more` from the engine.

        A user's algorithm is named, not pickled: the process can import it only once its `sys.path` is this one.
        """
        return {
            "config": to_dict(self.config),
            "spec": dataclasses.asdict(self.spec),
            "folder": str(where(self.folder)),
            "run_id": self.run_id,
            "started_at": self.started_at,
            "resume": self.resume or peer.incarnation > 0,
            "peer": [peer.role, peer.index, peer.incarnation],
            "incarnations": incarnations,
            "path": search_path(),
            **more,
        }

    @staticmethod
    def from_start(start: dict[str, Any]) -> Run:
        """The run in the result of `start_of`; imports what its configuration names."""
        config, spec = from_dict(start["config"]), EnvironmentSpec.from_dict(start["spec"])
        return Run(config, spec, Path(start["folder"]), start["run_id"], start["started_at"], start["resume"])


class Handle(ABC):
    """A role that was started, as the manager sees it."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.ready = False  # set once the role is able to work
        self.result: Outcome | None = None  # the learner's account of the run, once it has saved
        self.config_error = ""  # why the role cannot work as configured
        self.raised = ""  # the exception that ended the role, in one line
        self.heartbeats = 0  # reports of steps that the role's environments have made, at most one a second
        self._alive = True

    @property
    def alive(self) -> bool:
        """Whether the role runs or is being started; once it does not, everything else here is up to date."""
        self.listen()
        return self._alive

    def listen(self) -> None:  # noqa: B027 - the serial engine's roles report to no one
        """Takes note of what has happened, without waiting."""

    @property
    @abstractmethod
    def failure(self) -> str:
        """The traceback, or how the role died; empty if it ended well or still runs."""

    @abstractmethod
    def dump(self) -> None:
        """Has the role log where each of its threads is, if it still can; returns at once."""

    @abstractmethod
    def dismiss(self) -> None:
        """Has an actor or the evaluator close its environments and end, in the middle of a game; returns at once."""

    @abstractmethod
    def kill(self) -> None:
        """Ends the role at once, without saving, and what its environments have started."""


class Engine(ABC):
    """Starts roles, and waits for them."""

    restarts: bool  # whether a role that died can be started again
    busy = False  # whether a role works in the manager's thread, where a second signal must interrupt it
    link: Link
    """The manager's link to the learner; each learner that is started has a new one."""

    @abstractmethod
    def __init__(self, run: Run) -> None: ...

    @abstractmethod
    def start(self, peer: Peer, incarnations: dict[str, int]) -> Handle:
        """Starts a role whose previous incarnation, if there was one, has ended; a later `wait` sees that it is ready.

        A learner accepts the other roles in these `incarnations`, by name, until it is told of others. Every learner
        after the first one resumes.
        """

    @abstractmethod
    def reconnect(self) -> None:
        """Tells the other roles where the newest learner is; they leave the previous one."""

    @abstractmethod
    def wait(self, timeout_s: float) -> None:
        """Returns after `timeout_s` seconds, or earlier if a role reports or ends, a reply comes or `wake` is called."""

    @abstractmethod
    def wake(self) -> None:
        """Ends a `wait` when a signal has come; safe in a signal handler."""

    def pause(self, paused: bool) -> None:  # noqa: B027 - the serial engine stops with this process, and Ray never does
        """Stops the roles before Ctrl-Z stops this process, and lets them go on after; safe in a signal handler."""

    @abstractmethod
    def close(self) -> None:
        """Kills what still runs and removes everything temporary."""


def one_line(error: BaseException) -> str:
    """The exception's type and message, as the last line of a traceback has them."""
    return " ".join("".join(traceback.format_exception_only(error)).split())[:300]
