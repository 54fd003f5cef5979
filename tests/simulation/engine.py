"""The engine of simulated runs: roles that take turns in a world, and the links between them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from apex_acer.config import ConfigError
from apex_acer.engines.engine import Engine, Handle, Run, one_line
from apex_acer.engines.ray.link import merge
from apex_acer.engines.roles import make_learner, make_peer
from apex_acer.learner.learner import Learner
from apex_acer.learner.ranks import ALONE
from apex_acer.protocol.messages import Link, Message, Outcome, Peer, Reply
from apex_acer.system.signals import Dismissed
from tests.simulation.clients import Clients
from tests.simulation.ranks import Group, SimulatedRanks
from tests.simulation.world import Killed, World

LATENCY_S = 0.002
TURN_S = {"actor": 0.5, "evaluator": 0.3, "learner": 0.03}  # mean virtual seconds of a turn in which something is done
STEPS_OF_A_TURN = 5
IDLE_S = 0.5  # after which a role that waits looks again
STOP_S = 1.0  # in which the learner's peers hear of the end


class SimulatedLink(Link):
    """A peer's connection to one learner: messages and replies arrive late, in order, while both ends live."""

    def __init__(
        self, engine: SimulatedEngine, handle: SimulatedHandle | None, learner: SimulatedHandle | None
    ) -> None:
        """`handle`: the peer's; None: the manager's. `learner`: None: one that is yet to be started."""
        self.engine, self.handle, self.learner = engine, handle, learner
        self.broken = False
        self._waiting: deque[Message] = deque()  # until the learner listens
        self._replies: deque[Reply] = deque()
        self._sent_at = self._answered_at = 0.0
        self.unanswered: dict[int, Message] = {}

    def send(self, message: Message) -> None:
        self.unanswered[message.sequence] = message
        self._sent_at = self.engine.world.in_order(self._sent_at, LATENCY_S, lambda: self._arrive(message))

    def receive(self, timeout_s: float) -> Reply | None:
        """The next reply that has arrived; never waits, because others have their turns meanwhile."""
        return self._replies.popleft() if self._replies else None

    def heartbeat(self) -> None:
        assert self.handle
        if self.handle.dismissed:
            raise Dismissed

    def connect(self) -> None:
        """The learner listens from here on."""
        while self._waiting:
            self._arrive(self._waiting.popleft())

    def _arrive(self, message: Message) -> None:
        if self.broken or (self.learner and not self.learner.alive):
            return
        if self.learner is None or not self.learner.learners:
            self._waiting.append(message)
            return
        asked = [self._asked()] if self.handle else self.learner.learners
        replies: list[Reply] = []

        def take(reply: Reply) -> None:
            replies.append(reply)
            if len(replies) == len(asked):
                self._answer(message, merge(replies) if len(asked) > 1 else reply)

        for learner in asked:
            learner.inbox.post(message, take)
        self.engine.world.after(0, self.learner.look)
        if self.engine.repeats and self.engine.world.random.random() < self.engine.repeats:
            self.engine.world.after(self.engine.world.some(0.5), lambda: self._repeat(message))

    def _repeat(self, message: Message) -> None:
        """Delivers a message for a second time, whose answer nobody waits for."""
        if self.learner and self.learner.alive and self.learner.learners:
            self._asked().inbox.post(message, lambda reply: None)

    def _asked(self) -> Learner:
        """The learner that the peer talks to, or the first one."""
        assert self.learner
        index = self.handle.peer.index if self.handle and self.handle.peer.role == "actor" else 0
        return self.learner.learners[index % len(self.learner.learners)]

    def _answer(self, message: Message, reply: Reply) -> None:
        hear = functools.partial(self._hear, message, reply)
        self._answered_at = self.engine.world.in_order(self._answered_at, LATENCY_S, hear)

    def _hear(self, message: Message, reply: Reply) -> None:
        assert self.unanswered.pop(message.sequence, None), f"answered twice: {message.peer.name} {message.sequence}"
        if self.broken or (self.handle and not self.handle.alive):
            return
        self.engine.answered(self, message, reply)
        self._replies.append(reply)
        if self.handle:
            self.handle.look()
        else:
            self.engine.interrupt()


class SimulatedHandle(Handle):
    """A role that takes turns."""

    def __init__(self, engine: SimulatedEngine, peer: Peer) -> None:
        super().__init__(peer)
        self.engine, self.world = engine, engine.world
        self.role: Any = None
        self.learners: list[Learner] = []
        self.group = Group(engine.num_learners)
        self.link: SimulatedLink | None = None
        self.dismissed = self.frozen = False
        self.restored = 0
        """Of the first learner, the sequences in replay that it has from a checkpoint."""
        self.step_s = 0.0
        """Virtual seconds that each step of its environments takes, and after which it reports one."""
        self._failure = ""
        self._turn_at = -1.0  # when its next turn is
        self._busy = self._slept = self._stepping = False
        self._turn = 0

    @property
    def failure(self) -> str:
        return "" if self._alive else self._failure

    @property
    def name(self) -> str:
        return f"{self.peer.name}.{self.peer.incarnation}"

    def dump(self) -> None:
        self.world.note(f"{self.name} dumps")

    def dismiss(self) -> None:
        self.dismissed, self._busy = True, False
        self.look()

    def kill(self) -> None:
        self.end(f"{self.peer.name}: killed by SIGKILL")

    def end(self, failure: str = "", **reported: Any) -> None:
        """The process is gone, of which the manager hears at once."""
        if self._alive:
            self.world.note(f"{self.name} {failure.rpartition(chr(10))[2] or 'ends'}")
            self.engine.before_death(self)
            self._alive, self._failure = False, failure
            for name, value in reported.items():
                setattr(self, name, value)
            roles = self.learners or ([self.role] if self.role else [])
            self.role, self.learners = None, []
            for role in roles:
                with contextlib.suppress(OSError):  # a process that is gone writes nothing
                    role.close()
            if self.peer.role == "learner":
                self.world.disk.restore()
            self.engine.interrupt()

    def look(self) -> None:
        """Has the role take its turn soon, because something has come."""
        self._plan(self.world.some(LATENCY_S))

    def _plan(self, seconds: float, *, alone: bool = False) -> None:
        """Has its next turn be in so many seconds, or earlier if one is planned; `alone`: not earlier, whatever comes."""
        at = self.world.now + seconds
        if self._alive and not self._busy and (self._turn_at < self.world.now or at < self._turn_at):
            self._busy = alone
            self._turn += 1
            self._turn_at, turn = at, self._turn
            self.world.after(seconds, lambda: self.take_turn() if turn == self._turn else None)

    def thaw(self) -> None:
        self.frozen = self._busy = False
        self._turn_at = -1.0
        self.look()

    def take_turn(self) -> None:
        """Makes the role at its first turn, and has it make a step at others."""
        self._turn_at, self._busy = -1.0, False
        if not self._alive or self.frozen or self._stepping:
            return
        self.world.running, self._stepping = self.peer.role, True
        try:
            worked = self._begin() if self.role is None else self._sleeps() or self._step()
        except Killed:
            self.end(f"{self.peer.name}: killed by SIGKILL")
        except ConfigError as error:
            self.end(f"{self.peer.name}: exit code 2", config_error=str(error))
        except Dismissed:
            self.end()
        except Exception as error:
            self.world.note("".join(traceback.format_exception_only(error)).strip())
            self.end(f"{traceback.format_exc()}{self.peer.name}: exit code 1", raised=one_line(error))
        else:
            if not self._slept:
                self._plan(self.world.some(TURN_S[self.peer.role] if worked else IDLE_S))
        finally:
            self.world.running, self._stepping = "", False

    def _sleeps(self) -> bool:
        """Whether the time must first pass that the steps of its turn take."""
        self._slept = self.step_s > 0 and not (self._slept or self.dismissed)
        if not self._slept:
            return False
        for number in range(STEPS_OF_A_TURN):
            self.world.after((number + 1) * self.step_s, self._beat)
        self._plan(STEPS_OF_A_TURN * self.step_s, alone=True)
        return True

    def _beat(self) -> None:
        if not self.frozen:
            self.engine.report(self, heartbeats=self.heartbeats + 1)

    def _begin(self) -> bool:
        self.role, self.link = self.engine.make(self)
        self.world.note(f"{self.name} is ready")
        self.world.after(LATENCY_S, lambda: self.engine.report(self, ready=True))
        return True

    def _step(self) -> bool:
        if self.dismissed:
            raise Dismissed
        return self._learn() if self.peer.role == "learner" else self._act()

    def _act(self) -> bool:
        link, role = self.engine.link_of(self), self.role
        if link is not self.link:
            self.link = link
            role.reconnect(link)
        sent = role._sequence
        if not role.step(0):
            self.end()
        return bool(role._sequence != sent)

    def _learn(self) -> bool:
        if self.result:  # it has told everybody
            self.end()
            return False
        worked = not all(learner.idle for learner in self.learners)
        if not all(self.together([functools.partial(learner.step, 0) for learner in self.learners])):
            self.engine.before_death(self)
            outcomes: list[Outcome] = self.together([learner.finish for learner in self.learners])
            self.world.note(f"{self.name} has saved")
            self.engine.report(self, result=outcomes[0])
            self._turn_at = -1.0
            self._plan(STOP_S)
            return False
        return worked

    def together(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """What these calls of one function, one for each learner, return."""
        return self.group.run(calls) if len(calls) > 1 else [call() for call in calls]


class SimulatedEngine(Engine):
    """Roles that take turns in a `world`, where there may be `clients`."""

    restarts = True
    link: SimulatedLink
    newest: SimulatedEngine

    def __init__(self, run: Run, world: World, clients: Clients) -> None:
        self.world, self.clients = world, clients
        self._run, self.num_learners, self.resumed = run, run.config.learner.count, run.resume
        self.handles: dict[str, SimulatedHandle] = {}
        self.all: list[SimulatedHandle] = []
        self.repeats = 0.0
        """The probability that a message arrives twice."""
        self.acknowledged: dict[str, list[Message]] = {}
        """By learner, the messages with an unroll to which it has answered."""
        self.lost: Callable[[SimulatedHandle], None] = lambda handle: None
        """Called before a role is gone."""
        self.began: Callable[[SimulatedHandle], None] = lambda handle: None
        """Called when a learner has been made."""
        self._wakes = False
        self.dead = False
        self._reachable: SimulatedHandle | None = None
        self.link = SimulatedLink(self, None, None)
        self.world.disk.folder = run.folder
        type(self).newest = self

    def start(self, peer: Peer, incarnations: dict[str, int]) -> Handle:
        self._require_alive()
        handle = SimulatedHandle(self, peer)
        if before := self.handles.get(peer.name):
            before.kill()
        self.handles[peer.name] = handle
        self.all.append(handle)
        if peer.role == "learner":
            if peer.incarnation:
                self.link.broken = True
                self.link = SimulatedLink(self, None, None)
            self.link.learner = handle
            self._incarnations = incarnations
            if self._reachable is None:
                self._reachable = handle
        self.world.note(f"{handle.name} starts")
        handle._plan(self.world.some(1.0))
        return handle

    def make(self, handle: SimulatedHandle) -> tuple[Any, SimulatedLink | None]:
        """The role of `handle`, and its link."""
        start = self._run.start_of(handle.peer, self._incarnations)
        run = dataclasses.replace(self._run, folder=Path(start["folder"]), resume=start["resume"])
        if handle.peer.role == "learner":
            count = self.num_learners
            ranks = [SimulatedRanks(handle.group, rank, count) for rank in range(count)] if count > 1 else [ALONE]
            makers = [functools.partial(make_learner, run, self._incarnations, each) for each in ranks]
            handle.learners = handle.together(makers)
            handle.role = handle.learners[0]
            handle.restored = len(handle.role._queue.storage)
            self.began(handle)
            for other in (self.link, *(each.link for each in self.all if each.link and each.link.learner is handle)):
                self.world.after(0, other.connect)
            return handle.role, None
        link = SimulatedLink(self, handle, self._reachable)
        return make_peer(run, handle.peer, link), link

    def link_of(self, handle: SimulatedHandle) -> SimulatedLink:
        """The link to the learner that the role was told of."""
        assert handle.link
        if handle.link.learner is self._reachable:
            return handle.link
        handle.link.broken = True
        return SimulatedLink(self, handle, self._reachable)

    def reconnect(self) -> None:
        self._reachable = self.link.learner
        for handle in self.handles.values():
            handle.look()

    def answered(self, link: SimulatedLink, message: Message, reply: Reply) -> None:
        if message.unroll and not (reply.refused or reply.stop) and link.learner:
            self.acknowledged.setdefault(link.learner.name, []).append(message)

    def before_death(self, handle: SimulatedHandle) -> None:
        if handle.role:
            self.lost(handle)

    def report(self, handle: SimulatedHandle, **reported: Any) -> None:
        """Has the manager know what a role reports."""
        if handle.alive:
            for name, value in reported.items():
                setattr(handle, name, value)
            if "heartbeats" not in reported:
                self.interrupt()

    def wait(self, timeout_s: float) -> None:
        self._require_alive()
        until = self.world.now + timeout_s
        while not self._wakes and self.world.go_on(until):
            self._require_alive()
        self._wakes = False

    def interrupt(self) -> None:
        """Ends a `wait`."""
        self._wakes = True

    wake = interrupt

    def die(self) -> None:
        """The manager's process is killed, and its roles with it; its folder stays as it is now."""
        self.world.disk.keep()
        self.dead = True

    def _require_alive(self) -> None:
        if self.dead:
            raise Killed

    def close(self) -> None:
        for handle in self.handles.values():
            handle.kill()
        if self.dead:
            self.world.disk.restore()
