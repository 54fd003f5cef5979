"""The actors of Ray: each hosts one role, a `Learner`, `Actor` or `Evaluator`, in a thread."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import socket
import sys
import traceback
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray

from apex_acer import __version__
from apex_acer.config import ConfigError
from apex_acer.engines.engine import Run, one_line
from apex_acer.engines.ray.link import Packed, RayLink, in_order, unpack
from apex_acer.engines.roles import make_learner, make_peer, take_share
from apex_acer.learner.ranks import ALONE, ConnectedRanks, LearnerLost, listen
from apex_acer.protocol.messages import Outcome, Peer, Reply
from apex_acer.storage.folder import held
from apex_acer.storage.runlog import Log, Speech
from apex_acer.system.process import WAIT_S, die_with_the_parent, name_process
from apex_acer.system.signals import Dismissed

MOST_LINES = 300  # kept of the log of a role on another machine
TRANSCRIPT = 2  # the descriptor of the file into which Ray writes what the process prints
BEAT_S = 1.0  # between two answers to how many steps an actor or the evaluator has made
SHARED_BYTES = 100_000  # smaller weights travel faster in the reply than through the object store


class Host(ABC):
    """A process with one role; the manager's process calls its methods."""

    def __init__(self, start: dict[str, Any]) -> None:
        """`start` is the result of `Run.start_of`, with `version` of the package and the node `home` of the manager."""
        self._start, self._peer = start, Peer(*start["peer"])
        self._ready = asyncio.Event()

    async def ready(self) -> tuple[str, int]:
        """Waits until the role is able to work; returns its node and process id."""
        await self._ready.wait()
        return ray.get_runtime_context().get_node_id(), os.getpid()

    async def run(self, place: tuple[str, int] | None = None) -> dict[str, Any]:
        """Runs the role to its end; several learners meet at the address and port `place`.

        The result has the fields of `Handle` that the end sets, the traceback as `failure`, and as `log` the last lines if
        they could not be written to the run's log.
        """
        self._place = place
        self._loop = asyncio.get_running_loop()
        return await asyncio.to_thread(self._run)

    async def dump(self) -> str:
        return "\n".join("".join(traceback.format_stack(frame)) for frame in sys._current_frames().values())

    def _run(self) -> dict[str, Any]:
        end: dict[str, Any] = {}
        with self._logging() as lines:
            try:
                end["result"] = self._work(self._prepare())
            except ConfigError as error:
                end["config_error"] = str(error)
            except (Exception, SystemExit) as error:
                end["failure"] = traceback.format_exc()
                if not isinstance(error, LearnerLost):  # the lost learner's own error is the one to report
                    end["raised"] = one_line(error)
            return {"log": "".join(lines), **end}

    def _prepare(self) -> Run:
        die_with_the_parent()
        name_process(f"{self._peer.role}_{self._peer.index}")  # Ray has given it another name
        self._check_version()
        sys.path += [entry for entry in self._start["path"] if entry not in sys.path]
        run = Run.from_start(self._start)
        take_share(run, self._peer.role)
        # arrays from Ray's store are read-only, and no role writes to them
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return run

    def _check_version(self) -> None:
        if self._start["version"] != __version__:
            here = f"{socket.gethostname()} has apex_acer {__version__}"
            raise ConfigError(f"ray.address: {here}, the manager {self._start['version']}; install the same")

    @contextmanager
    def _logging(self) -> Iterator[deque[str]]:
        """Logs to the run's log, and keeps its folder open, if it is on this machine; else into the lines it yields."""
        lines = deque[str](maxlen=MOST_LINES)
        folder, name, logger = Path(self._start["folder"]), self._peer.name, logging.getLogger("apex_acer")
        is_at_home = ray.get_runtime_context().get_node_id() == self._start["home"]
        stream: Any = SimpleNamespace(write=lines.append)
        if is_at_home:
            stream = sys.stdout = sys.stderr = Speech(Log(folder), name, TRANSCRIPT).stream()
        handler = logging.StreamHandler(stream)
        if not is_at_home:
            handler.setFormatter(logging.Formatter(f"%(asctime)s {name}: %(message)s"))
        logger.setLevel(self._start["config"]["logging"]["level"].upper())
        logger.addHandler(handler)
        with held(folder, self._start["run_id"]) if is_at_home else nullcontext():
            yield lines

    @abstractmethod
    def _work(self, run: Run) -> Outcome | None: ...

    def _tell_ready(self) -> None:
        self._loop.call_soon_threadsafe(self._ready.set)


class LearnerHost(Host):
    """The host of a learner. It answers messages to the learner's inbox, after the end with a stop."""

    def __init__(self, start: dict[str, Any]) -> None:
        super().__init__(start)
        self._listening: socket.socket | None = None
        self._shared: tuple[bytes, ray.ObjectRef[Any] | None] = b"", None  # the newest weights, and where they are

    async def listen(self) -> tuple[str, int]:
        """The address and port at which the other learners meet this one."""
        host: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        self._listening, port = listen(host)
        return host, port

    async def exchange(self, packed: Packed) -> tuple[Reply, ray.ObjectRef[Any] | None]:
        """Posts a message and waits for its reply; the weights may be in Ray's store rather than in the reply."""
        await self._ready.wait()
        answered = self._loop.create_future()
        message = unpack(packed)

        def answer(reply: Reply) -> None:
            self._loop.call_soon_threadsafe(answered.set_result, reply)

        self._post(message, answer)
        reply = await answered
        weights = reply.weights if message.peer.role == "actor" else None  # no other role gets the evaluator's snapshot
        if weights is None or len(weights) < SHARED_BYTES:
            return reply, None
        return dataclasses.replace(reply, weights=None), self._share(weights)

    def _share(self, weights: bytes) -> ray.ObjectRef[Any] | None:
        """Puts `weights` into the store once per version, so that each machine fetches a version once."""
        if self._shared[0] is not weights:
            self._shared = weights, ray.put(weights)
        return self._shared[1]

    def _work(self, run: Run) -> Outcome:
        ranks = ALONE
        if self._place is not None:
            count, timeout_s = run.config.learner.count, run.config.supervision.hung_seconds
            ranks = ConnectedRanks(self._peer.index, count, *self._place, timeout_s, self._listening)
        learner = make_learner(run, self._start["incarnations"], ranks)
        self._post = in_order(learner.inbox.post)
        self._tell_ready()
        while learner.step(WAIT_S):
            pass
        return learner.finish()


class PeerHost(Host):
    """The host of an actor or of the evaluator."""

    def __init__(self, start: dict[str, Any], learner: Any) -> None:
        """`learner` is the handle of the learner's host."""
        super().__init__(start)
        self._learner = learner
        self._steps, self._dismissed = 0, False
        self._link = self._make_link()

    async def reconnect(self, learner: Any) -> None:
        """Switches to `learner`, unless it is the same as before."""
        if learner != self._learner:
            self._learner = learner
            self._link.leave()

    async def steps(self) -> int:
        """The steps of the environments so far, after a pause, because the manager asks again at once."""
        await asyncio.sleep(BEAT_S)
        return self._steps

    async def dismiss(self) -> None:
        """Has the role close its environments after the step that runs, and end."""
        self._dismissed = True
        self._link.leave()

    def _beat(self) -> None:
        self._steps += 1
        if self._dismissed:
            raise Dismissed

    def _make_link(self) -> RayLink:
        compress = self._start["config"]["ray"]["compress"]
        return RayLink(self._learner, compress=compress, heartbeat=self._beat)

    def _work(self, run: Run) -> None:
        learner = self._learner
        with closing(make_peer(run, self._peer, self._link)) as worker, suppress(Dismissed):
            self._tell_ready()
            while not self._dismissed and worker.step(WAIT_S):
                if learner != self._learner:
                    learner = self._learner
                    self._link = self._make_link()
                    worker.reconnect(self._link)
