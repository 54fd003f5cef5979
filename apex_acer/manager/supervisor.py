"""The supervisor: keeps a run's roles alive. It knows handles, not engines; how far actors are, the learner tells it.

Whoever dies, hangs or is frozen is killed and started again as the next incarnation, a little later each time, until it
has died too often, or has raised the same error twice before the first unroll was accepted. A learner goes on from its
last checkpoint, and the others then speak with it.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from typing import Any

from apex_acer.config import ConfigError
from apex_acer.engines.engine import Engine, Handle, Run
from apex_acer.protocol.messages import Message, Peer, Reply
from apex_acer.storage.checkpoint import newest
from apex_acer.system.output import printable_lines

log = logging.getLogger(__name__)

LOOK_S = 0.5  # between two questions to the learner
LONGEST_LOOK_S = 2 * LOOK_S  # more time than this has not passed for the others: this process was stopped, or busy
READY_S = 300.0  # importing torch takes its time on a cold machine, and longer where 64 actors do it at once
BACKOFF_S = 0.5  # before the first restart within the window; each further one waits twice as long ...
DOUBLINGS = 4  # ... this often
SAVED_BYTES_PER_S = 50e6  # of replay, on a slow disk
DUMP_S = 0.5  # for a hung process to write where it is before it is killed

Status = dict[str, Any]


class RunFailed(Exception):
    """A process of the run ended badly and cannot be started again; the message is its traceback, safe to print."""

    def __init__(self, text: str) -> None:
        super().__init__(printable_lines(text))


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
        self._deaths: list[float] = []
        self._idle_s = 0.0
        self._progress = (False, 0)

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

    def count_death(self, window_s: float) -> int:
        """Deaths within the last `window_s` seconds, this one included."""
        now = time.monotonic()
        self._deaths = [at for at in self._deaths if now - at < window_s] + [now]
        return len(self._deaths)

    def succeed(self, delay_s: float, died_of: str = "") -> None:
        """The next incarnation is to start in `delay_s` seconds, after one that `died_of` something or ended well."""
        self.died_of = died_of
        self.peer = dataclasses.replace(self.peer, incarnation=self.peer.incarnation + 1)
        self.handle, self.start_at = None, time.monotonic() + delay_s
        self.left_at = self.dumped_at = self._idle_s = 0.0
        self._progress = (False, 0)


class Supervisor:
    """Starts the roles of a run, speaks with its learner, and restarts who fails."""

    def __init__(self, run: Run, engine: Engine) -> None:
        config, self._settings = run.config, run.config.supervision
        self._run, self._engine = run, engine
        hung_s, credit = self._settings.hung_seconds, config.actors.max_unanswered
        self.learner = Role(Peer("learner", 0, 0), hung_s)
        self._actors = [Role(Peer("actor", index, 0), hung_s, credit) for index in range(config.actors.count)]
        evaluator = Role(Peer("evaluator", 0, 0), 60 * self._settings.evaluation_minutes)
        self._peers = [*self._actors, *([evaluator] if config.evaluation.every else [])]
        self._status: Status = {}
        self._states: dict[str, str] = {}
        self._news: list[str] = []
        self._raised_early: set[tuple[str, str]] = set()  # roles, and what they raised before the first unroll came
        self._steps_at_start: int | None = None
        self._looked_at = self._heard_at = self._asked_at = 0.0
        self._meet_learner()

    def tend(self) -> Status | None:
        """Looks after everybody once, without waiting.

        Returns:
            The learner's newest status where there is news, with `restarts` and `states` (`Role.state`) by name, and in
            `news` what happened since.

        Raises:
            ConfigError: a role can not work as configured.
            RunFailed: one died and can not be started again; the message has its traceback.
        """
        now = time.monotonic()
        elapsed_s, self._looked_at = min(now - self._looked_at, LONGEST_LOOK_S), now
        news = self._talk(now)
        self.learner.note(elapsed_s, self._turns, unanswered=0)
        self._look_after(self.learner)
        for role in () if self._stopping else self._peers:
            self._look_after(role)
        before, self._states = self._states, {role.peer.name: role.state for role in (self.learner, *self._peers)}
        return self._report() if self._status and (news or self._news or before != self._states) else None

    def say(self, stop: str = "") -> None:
        """Asks the learner for its status, tells it who is whose successor, and, where given, why to `stop`."""
        self._told = self._incarnations()
        message = Message(self._run.run_id, Peer("manager", 0, 0), self._said, stop=stop, incarnations=self._told)
        self._engine.link.send(message)
        self._said += 1
        self._unanswered += 1
        self._asked_at = time.monotonic()

    @property
    def working(self) -> bool:
        """Whether the learner or an actor is still there."""
        return any(role.handle is not None and role.handle.alive for role in (self.learner, *self._actors))

    @property
    def replay_save_s(self) -> float:
        """Seconds that the learner may take to save its replay memory, beyond what every save takes."""
        return float(self._status.get("replay_bytes", 0)) / SAVED_BYTES_PER_S

    # ── the conversation with the learner ──

    def _meet_learner(self) -> None:
        """A learner that knows nothing yet, and for which the others have done nothing yet."""
        for role in self._peers:
            role.forgive()
        self._said = self._unanswered = self._turns = 0
        self._told = {}
        self._heard = False
        self._known: dict[str, int] = {}  # what the learner has taken in of it ...
        self._known_at = 0.0  # ... when it was asked at these monotonic seconds
        self._stopping = False

    def _talk(self, now: float) -> bool:
        """Hears what the learner has answered, and asks when it is time; returns whether there was anything to hear."""
        handle, heard = self.learner.handle, False
        if handle is None or not (handle.ready and handle.alive):
            return False
        while reply := self._engine.link.receive(0):
            self._hear(reply, now)
            heard = True
        if not self._unanswered and (now >= self._asked_at + LOOK_S or self._told != self._incarnations()):
            self.say()
        return heard

    def _hear(self, reply: Reply, now: float) -> None:
        if reply.refused:
            raise RuntimeError(f"the learner refused the manager's message: {reply.refused}")
        self._unanswered -= 1
        if not self._heard:
            self._engine.reconnect()
            self._heard = True
        if not self._unanswered:
            self._known, self._known_at = self._told, self._asked_at
        self._stopping = reply.stop
        progress = reply.status.pop("progress", {})
        self._turns, _ = progress.get("learner", (self._turns, 0))
        self._status = reply.status or self._status
        if self._steps_at_start is None:
            self._steps_at_start = reply.status.get("env_steps")
        self.learner.patience_s = self._settings.hung_seconds + self.replay_save_s
        elapsed_s, self._heard_at = min(now - self._heard_at, LONGEST_LOOK_S), now
        for role in self._peers:
            role.note(elapsed_s, *progress.get(role.peer.name, (0, 0)))

    def _incarnations(self) -> dict[str, int]:
        return {role.peer.name: role.peer.incarnation for role in self._peers}

    def _report(self) -> Status:
        restarts = {role.peer.name: role.peer.incarnation for role in (self.learner, *self._peers)}
        news, self._news = self._news, []
        return {**self._status, "restarts": restarts, "states": self._states, "news": news}

    # ── life and death ──

    def _look_after(self, role: Role) -> None:
        if role.handle is None:
            self._start(role)
        elif role.handle.alive and (why := role.hangs):
            self._end_hung(role, role.handle, why)
        elif not role.handle.alive and (why := role.cause):
            self._replace(role, role.handle, why)
        elif role.ended_well:
            role.left_at = role.left_at or time.monotonic()
            if self._known_at > role.left_at:  # a learner that died had told it to stop, and this one goes on
                role.succeed(0.0)

    def _end_hung(self, role: Role, handle: Handle, why: str) -> None:
        if not role.dumped_at:
            handle.dump()
            role.dumped_at = time.monotonic()
        elif time.monotonic() >= role.dumped_at + DUMP_S:
            handle.kill()
            self._replace(role, handle, why)

    def _start(self, role: Role) -> None:
        """Starts it when it is time, and the learner knows whom it will hear."""
        known = role is self.learner or self._known.get(role.peer.name) == role.peer.incarnation
        if known and time.monotonic() >= role.start_at:
            role.handle = self._engine.start(role.peer, self._incarnations())
            if role is self.learner:
                self._known, self._known_at = self._incarnations(), time.monotonic()
            log.info("started %s, incarnation %d", role.peer.name, role.peer.incarnation)

    def _replace(self, role: Role, handle: Handle, why: str) -> None:
        """Makes a successor of a role that has died; raises where there can be none."""
        if handle.config_error and not role.peer.incarnation:
            raise ConfigError(handle.config_error)
        name, settings = role.peer.name, self._settings
        deaths = role.count_death(60 * settings.window_minutes)
        if reason := self._reason_to_end(role, handle, deaths):
            raise RunFailed(f"{handle.failure}\n{name}: {why}; {reason}".strip())
        delay_s = BACKOFF_S * 2 ** min(deaths - 1, DOUBLINGS)
        self._news.append(f"{name}: {why}; restart {deaths} of {settings.restarts} in {delay_s:g} s")
        log.warning(self._news[-1])
        role.succeed(delay_s, why)
        if role is self.learner:
            self._meet_learner()

    def _reason_to_end(self, role: Role, handle: Handle, deaths: int) -> str:
        """Why the role has no further incarnation; empty where it has."""
        settings = self._settings
        if not self._engine.restarts:
            return "this engine restarts nobody"
        if role is self.learner and handle.raised:  # as where the disk is full, or nothing is finite any more
            return "it would end like this again"
        if role is self.learner and newest(self._run.folder) is None:
            return "there is no checkpoint to go on from"
        if self._raises_again(role, handle):
            return "the same came before, and no unroll was accepted yet"
        if deaths > settings.restarts:
            times = f"{deaths} times within {settings.window_minutes:g} minutes"
            return f"it ended {times}, supervision.restarts allows {settings.restarts}"
        return ""

    def _raises_again(self, role: Role, handle: Handle) -> bool:
        """Whether a role of its kind has raised the same before the first unroll, as a mistake in an environment does."""
        cause = (role.peer.role, handle.raised)
        if not handle.raised or self._status.get("env_steps") != self._steps_at_start:
            return False
        again = cause in self._raised_early
        self._raised_early.add(cause)
        return again
