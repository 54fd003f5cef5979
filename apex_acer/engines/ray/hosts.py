"""The actors of Ray: each hosts one role, a plain `Learner`, `Actor` or `Evaluator`, in a thread."""

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
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from types import SimpleNamespace
from typing import Any, NamedTuple

import ray

from apex_acer import __version__
from apex_acer.config import ConfigError
from apex_acer.config.runfile import from_dict, to_dict
from apex_acer.engines.engine import Run, one_line
from apex_acer.engines.ray.link import Order, PackedMessage, RayLink, unpack
from apex_acer.engines.roles import make_learner, make_peer, take_share
from apex_acer.learner import ranks
from apex_acer.learner.ranks import ConnectedRanks, LearnerLost, Meeting, Ranks
from apex_acer.protocol.messages import Outcome, Peer, Reply
from apex_acer.storage.folder import held
from apex_acer.storage.runlog import Log, Speech
from apex_acer.system.process import WAIT_S, die_with_the_parent, name_process
from apex_acer.system.signals import Dismissed

MOST_LINES = 300  # kept of the log of a role on another machine
TRANSCRIPT = 2  # the descriptor of the file into which Ray writes what the process prints
BEAT_S = 1.0  # between two answers to how many steps an actor or the evaluator has made
SHARED_BYTES = 100_000  # smaller weights travel faster in the reply than through the object store


class Start(NamedTuple):
    """What a role is started with; `version` and `path` are the manager's. The index of a learner is its rank."""

    run: Run
    peer: Peer
    version: str
    path: list[str]
    incarnations: dict[str, int]
    home: str
    """The node of the manager and of the run's folder."""


class End(NamedTuple):
    """How a role ended, as in `Handle`; `log` has its last lines if it could not write them to the run's log."""

    log: str = ""
    result: Outcome | None = None
    config_error: str = ""
    raised: str = ""
    failure: str = ""


class Host(ABC):
    """A process with one role; the manager's process calls its methods."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._ready = asyncio.Event()

    async def ready(self) -> tuple[str, int]:
        """Waits until the role is able to work; returns its node and process id."""
        await self._ready.wait()
        return ray.get_runtime_context().get_node_id(), os.getpid()

    async def run(self, place: tuple[str, int] | None = None) -> End:
        """Runs the role to its end; several learners meet at the address and port `place`."""
        self._place = place
        self._loop = asyncio.get_running_loop()
        return await asyncio.to_thread(self._run)

    async def dump(self) -> str:
        return "\n".join("".join(traceback.format_stack(frame)) for frame in sys._current_frames().values())

    def _run(self) -> End:
        with self._logging() as lines, self._folder_held():
            try:
                self._prepare()
                end = End(result=self._work())
            except ConfigError as error:
                end = End(config_error=str(error))
            except LearnerLost:  # the lost learner's own error is the one to report
                end = End(failure=traceback.format_exc())
            except (Exception, SystemExit) as error:
                end = End(raised=one_line(error), failure=traceback.format_exc())
            return end._replace(log="".join(lines))

    def _prepare(self) -> None:
        start, run = self._start, self._start.run
        die_with_the_parent()
        name_process(f"{start.peer.role}_{start.peer.index}")  # Ray has given it another name
        self._check_version()
        sys.path += [entry for entry in start.path if entry not in sys.path]
        run = dataclasses.replace(run, config=from_dict(to_dict(run.config)))
        self._start = start._replace(run=run)
        take_share(run, start.peer.role)
        # arrays from Ray's store are read-only, and no role writes to them
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")

    def _check_version(self) -> None:
        if self._start.version != __version__:
            here = f"{socket.gethostname()} has apex_acer {__version__}"
            raise ConfigError(f"ray.address: {here}, the manager {self._start.version}; install the same")

    @contextmanager
    def _logging(self) -> Iterator[deque[str]]:
        """Logs to the run's log if its folder is on this machine, else into the lines that it yields."""
        lines = deque[str](maxlen=MOST_LINES)
        run, name, logger = self._start.run, self._start.peer.name, logging.getLogger("apex_acer")
        handler: logging.Handler
        if self._is_at_home:
            sys.stdout = sys.stderr = Speech(Log(run.folder), name, TRANSCRIPT).stream()
            handler = logging.StreamHandler(sys.stderr)
        else:
            stream: Any = SimpleNamespace(write=lines.append)
            handler = logging.StreamHandler(stream)
            handler.setFormatter(logging.Formatter(f"%(asctime)s {name}: %(message)s"))
        level = run.config.logging.level
        logger.setLevel(level.upper())
        logger.addHandler(handler)
        yield lines

    def _folder_held(self) -> AbstractContextManager[None]:
        run = self._start.run
        return held(run.folder, run.run_id) if self._is_at_home else nullcontext()

    @property
    def _is_at_home(self) -> bool:
        return bool(ray.get_runtime_context().get_node_id() == self._start.home)

    @abstractmethod
    def _work(self) -> Outcome | None: ...

    def _tell_ready(self) -> None:
        self._loop.call_soon_threadsafe(self._ready.set)


class LearnerHost(Host):
    """The learner, and the calls that reach its inbox; after the end it answers them with a stop while the process lives."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self._order = Order()
        self._listening: socket.socket | None = None
        self._shared: tuple[bytes, ray.ObjectRef[Any] | None] = b"", None  # the newest weights, and where they are

    async def listen(self) -> tuple[str, int]:
        """The address and port at which the other learners meet this one."""
        host: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        self._listening, port = ranks.listen(host)
        return host, port

    async def exchange(self, packed: PackedMessage) -> tuple[Reply, ray.ObjectRef[Any] | None]:
        """Posts a message and waits for its reply; the weights may be in Ray's store rather than in the reply."""
        await self._ready.wait()
        answered = self._loop.create_future()
        message = unpack(packed)

        def answer(reply: Reply) -> None:
            self._loop.call_soon_threadsafe(answered.set_result, reply)

        self._order.take(message, answer, self._learner.inbox.post)
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

    def _meet(self) -> Ranks:
        if self._place is None:
            return ranks.ALONE
        config, rank = self._start.run.config, self._start.peer.index
        meeting = Meeting(rank, config.learner.count, *self._place, config.supervision.hung_seconds)
        return ConnectedRanks(meeting, self._listening)

    def _work(self) -> Outcome:
        self._learner = make_learner(self._start.run, self._start.incarnations, self._meet())
        self._tell_ready()
        while self._learner.step(WAIT_S):
            pass
        return self._learner.finish()


class PeerHost(Host):
    """The host of an actor or of the evaluator."""

    def __init__(self, start: Start, learner: Any) -> None:
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
        """The steps of the environments so far, after a pause: the manager asks again and again."""
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
        config = self._start.run.config
        return RayLink(self._learner, compress=config.ray.compress, heartbeat=self._beat)

    def _work(self) -> None:
        start, learner = self._start, self._learner
        with closing(make_peer(start.run, start.peer, self._link)) as worker, suppress(Dismissed):
            self._tell_ready()
            while not self._dismissed and worker.step(WAIT_S):
                if learner != self._learner:
                    learner = self._learner
                    self._link = self._make_link()
                    worker.reconnect(self._link)
