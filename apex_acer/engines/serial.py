"""The serial engine runs all roles in turn in one process, so that a run is reproducible to the bit."""

from __future__ import annotations

import logging
import traceback
from collections import deque
from collections.abc import Callable

import torch

from apex_acer.config import ConfigError
from apex_acer.engines.engine import Engine, Handle, Run, one_line
from apex_acer.engines.roles import make_learner, make_peer
from apex_acer.learner.inbox import Inbox
from apex_acer.learner.learner import Learner
from apex_acer.protocol.messages import Link, Message, Peer, Reply
from apex_acer.storage.runlog import speaking_as
from apex_acer.system.signals import Dismissed

log = logging.getLogger(__name__)
Turn = tuple[Callable[[], bool], Callable[[], None]]
"""A function that makes one step of a role and returns whether there are more, and one that closes the role."""


class DirectLink(Link):
    """Posts messages into the inbox without a copy."""

    def __init__(self, inbox: Inbox, heartbeat: Callable[[], None] = lambda: None) -> None:
        """`heartbeat` is called after each step of the environments."""
        self._inbox, self._heartbeat = inbox, heartbeat
        self._replies: deque[Reply] = deque()

    def send(self, message: Message) -> None:
        self._inbox.post(message, self._replies.append)

    def receive(self, timeout_s: float) -> Reply | None:
        del timeout_s  # no other role would run in the meantime
        return self._replies.popleft() if self._replies else None

    def heartbeat(self) -> None:
        self._heartbeat()


class SerialHandle(Handle):
    """A role that is a plain object of this process."""

    failure = ""

    def __init__(self, peer: Peer, turn: Turn) -> None:
        super().__init__(peer)
        self.ready = True
        self._step, self._close = turn

    def turn(self) -> None:
        """Makes one step; an exception that it raises becomes the handle's `failure`."""
        if not self.alive:
            return
        with speaking_as(self.peer.name):
            try:
                going = self._step()
            except ConfigError as error:
                self.config_error, going = str(error), False
            except Dismissed:
                going = False
            except KeyboardInterrupt:  # a second signal
                raise
            except BaseException as error:  # `sys.exit` in a user's code is an error, too
                log.exception("failed")
                self.raised = one_line(error)
                self.failure, going = f"{traceback.format_exc()}{self.peer.name}: failed", False
        if not going:
            self.kill()

    def dump(self) -> None:
        """Does nothing: while the manager runs, no role hangs."""

    def replace(self, turn: Turn) -> None:
        self._close()
        self._step, self._close = turn

    def dismiss(self) -> None:
        self.kill()

    def kill(self) -> None:
        if self._alive:
            self._alive = False
            self._close()


class SerialEngine(Engine):
    """Each `wait` gives every role one turn: the learner does all it can, then each actor makes one unroll."""

    restarts = False  # a restart depends on what failed when, which is not reproducible

    def __init__(self, run: Run) -> None:
        self._run = run
        self._handles: list[SerialHandle] = []
        self._learner: Learner
        self._signalled = False
        torch.set_num_threads(run.config.learner.threads)

    def start(self, peer: Peer, incarnations: dict[str, int]) -> Handle:
        """Makes the role; raises `ConfigError` if it cannot work as configured."""
        with speaking_as(peer.name):
            if peer.role == "learner":
                self._learner = make_learner(self._run, incarnations)
                self.link = DirectLink(self._learner.inbox)
                turn: Turn = self._learn, self._learner.close
            else:
                turn = self._make_peer(peer)
        self._handles.append(SerialHandle(peer, turn))
        return self._handles[-1]

    def _make_peer(self, peer: Peer) -> Turn:
        role = make_peer(self._run, peer, DirectLink(self._learner.inbox, self._check))
        return lambda: role.step(0), role.close

    def reconnect(self) -> None:
        """Does nothing: no learner is restarted."""

    def wait(self, timeout_s: float) -> None:
        """Gives each role a turn, the learner first: after a resume it may owe updates before it reads messages."""
        del timeout_s
        self.busy = True
        try:
            for handle in self._handles:
                handle.turn()
        finally:
            self.busy = False

    def wake(self) -> None:
        """Ends the unroll or the evaluation that runs: a signal has come."""
        self._signalled = True

    def _check(self) -> None:
        if self._signalled:
            raise Dismissed

    def close(self) -> None:
        for handle in self._handles:
            handle.kill()

    def _learn(self) -> bool:
        """One turn of the learner; returns whether the run continues."""
        if not self._learn_until_idle():
            self._handles[0].result = self._learner.finish()
            for handle in self._handles[1:]:
                handle.kill()  # a stop by message would cost each of them another turn
            return False
        if self._learner.at_checkpoint:
            # a resumed run starts with new roles; so that it equals this run bit for bit, this run does the same
            self._learner.at_checkpoint = False
            for handle in self._handles[1:]:
                handle.replace(self._make_peer(handle.peer))
        return True

    def _learn_until_idle(self) -> bool:
        """Returns whether the run continues. A checkpoint drops the messages that wait."""
        while self._learner.step(0):
            if self._learner.at_checkpoint:
                self._learner.forget_peers()
            if self._learner.idle:
                return True
        return False
