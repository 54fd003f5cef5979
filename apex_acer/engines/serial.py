"""The serial engine: the same roles called in turn in one process, reproducible to the bit."""

from __future__ import annotations

import logging
import traceback
from collections import deque
from collections.abc import Callable

import torch

from apex_acer.actor.actor import Actor
from apex_acer.actor.evaluator import Evaluator
from apex_acer.config import ConfigError
from apex_acer.engines.engine import Engine, Handle, Run, one_line
from apex_acer.learner.learner import Learner
from apex_acer.protocol.inbox import Inbox
from apex_acer.protocol.messages import Link, Message, Peer, Reply
from apex_acer.storage.runlog import speaking_as

log = logging.getLogger(__name__)


class DirectLink(Link):
    """Posts into the inbox without a copy."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._replies: deque[Reply] = deque()

    def send(self, message: Message) -> None:
        """Posts `message`."""
        self._inbox.post(message, self._replies.append)

    def receive(self, timeout_s: float) -> Reply | None:
        """The next reply; never waits, because nobody else runs meanwhile."""
        del timeout_s
        return self._replies.popleft() if self._replies else None


class SerialHandle(Handle):
    """A role as an object; `turn` gives it its turn."""

    def __init__(self, peer: Peer, step: Callable[[], bool], close: Callable[[], None]) -> None:
        super().__init__(peer)
        self.ready = True
        self._step, self._close = step, close
        self._alive = True
        self._failure = ""

    def turn(self) -> None:
        """One step; what it raises becomes its `failure`."""
        if not self._alive:
            return
        try:
            with speaking_as(self.peer.name):
                going = self._step()
        except ConfigError as error:
            self.config_error, going = str(error), False
        except Exception as error:
            with speaking_as(self.peer.name):
                log.exception("failed")
            self.raised = one_line(error)
            self._failure, going = f"{traceback.format_exc()}{self.peer.name}: failed", False
        if not going:
            self.kill()

    @property
    def alive(self) -> bool:
        """Whether its turn still does something."""
        return self._alive

    @property
    def failure(self) -> str:
        """The traceback of what its step raised."""
        return self._failure

    def dump(self) -> None:
        """Nothing to do: who asks is not hung."""

    def replace(self, step: Callable[[], bool], close: Callable[[], None]) -> None:
        """Frees the object and goes on with another."""
        self._close()
        self._step, self._close = step, close

    def kill(self) -> None:
        """Ends it."""
        if self._alive:
            self._alive = False
            self._close()


class SerialEngine(Engine):
    """Each `wait` gives every role one turn: the learner does all it can, then actors make an unroll each."""

    restarts = False  # what happens here is to be reproducible

    def __init__(self, run: Run) -> None:
        self._run = run
        self._handles: list[SerialHandle] = []
        self._learner: Learner
        torch.set_num_threads(run.config.learner.threads)

    def start(self, peer: Peer, incarnations: dict[str, int]) -> Handle:
        """Makes the role; raises `ConfigError` where it cannot work as configured."""
        with speaking_as(peer.name):
            handle = self._make(peer, incarnations)
        self._handles.append(handle)
        return handle

    def _make(self, peer: Peer, incarnations: dict[str, int]) -> SerialHandle:
        run = self._run
        if peer.role == "learner":
            self._learner = Learner(run.config, run.spec, run.folder, run.run_id, run.started_at, resume=run.resume)
            self._learner.inbox.expect(incarnations)
            self.link = DirectLink(self._learner.inbox)
            return SerialHandle(peer, self._learn, self._learner.close)
        return SerialHandle(peer, *self._make_role(peer))

    def _make_role(self, peer: Peer) -> tuple[Callable[[], bool], Callable[[], None]]:
        """What an actor's or evaluator's turn does, and how it ends."""
        run = self._run
        link, threads = DirectLink(self._learner.inbox), run.config.actors.threads
        role: Actor | Evaluator
        if peer.role == "actor":
            role = Actor(run.config, run.run_id, peer, link, threads)
        else:
            role = Evaluator(run.config, run.run_id, peer, link, threads, run.folder)
        return lambda: role.step(0), role.close

    def reconnect(self) -> None:
        """Nothing to do: there is one learner."""

    def wait(self, timeout_s: float) -> None:
        """One turn each, the learner first: one that goes on from a checkpoint may have updates to make before it hears."""
        del timeout_s
        for handle in self._handles:
            handle.turn()

    def wake(self) -> None:
        """Nothing to do: `wait` does not wait."""

    def close(self) -> None:
        """Closes the environments."""
        for handle in self._handles:
            handle.kill()

    def _learn(self) -> bool:
        going = self._learn_what_is_there()
        if not going:
            self._handles[0].result = self._learner.finish()
            for handle in self._handles[1:]:
                handle.kill()  # rather than have them told, which would be their next turn
        elif self._learner.at_checkpoint:
            # the start they have when a run is resumed: one that is stopped here and resumed is, bit for bit, this one
            self._learner.at_checkpoint = False
            for handle in self._handles[1:]:
                handle.replace(*self._make_role(handle.peer))
        return going

    def _learn_what_is_there(self) -> bool:
        """Until the learner would wait; False where the run is to end. At a checkpoint what waits is dropped."""
        while self._learner.step(0):
            if self._learner.at_checkpoint:
                self._learner.inbox.forget_peers()
            if self._learner.idle:
                return True
        return False
