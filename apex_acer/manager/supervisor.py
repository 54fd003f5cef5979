"""The supervisor: keeps a run's roles alive. It knows handles, not engines; how far actors are, the learner tells it.

Whoever dies, hangs or is frozen is killed and started again as the next incarnation, a little later each time, until it
has died too often, or has raised the same error twice before the first unroll was accepted. A learner goes on from its
last checkpoint, and the others then speak with it.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from apex_acer.config import ConfigError
from apex_acer.engines.engine import Engine, Handle, Run
from apex_acer.manager.conversation import LOOK_S, Conversation
from apex_acer.manager.restarts import Restarts
from apex_acer.manager.role import Role
from apex_acer.protocol.messages import Peer, Reply
from apex_acer.system.output import printable_lines

log = logging.getLogger(__name__)

LONGEST_LOOK_S = 2 * LOOK_S  # more time than this has not passed for the others: this process was stopped, or busy
SAVED_BYTES_PER_S = 50e6  # of replay, on a slow disk
DUMP_S = 0.5  # for a hung process to write where it is before it is killed

Status = dict[str, Any]


class RunFailed(Exception):
    """A process of the run ended badly and cannot be started again; the message is its traceback, safe to print."""

    def __init__(self, text: str) -> None:
        super().__init__(printable_lines(text))


class Supervisor:
    """Starts the roles of a run, speaks with its learner, and restarts who fails."""

    def __init__(self, run: Run, engine: Engine) -> None:
        config, self._settings = run.config, run.config.supervision
        self._run_id, self._engine = run.run_id, engine
        hung_s, credit = self._settings.hung_seconds, config.actors.max_unanswered
        self.learner = Role(Peer("learner", 0, 0), hung_s)
        self._actors = [Role(Peer("actor", index, 0), hung_s, credit) for index in range(config.actors.count)]
        evaluator = Role(Peer("evaluator", 0, 0), 60 * self._settings.evaluation_minutes)
        self._peers = [*self._actors, *([evaluator] if config.evaluation.every else [])]
        self._restarts = Restarts(run, engine)
        self._talk = Conversation(self._run_id, engine)
        self._turns = 0  # of the learner
        self._stopping = False
        self._status: Status = {}
        self._states: dict[str, str] = {}
        self._news: list[str] = []
        self._steps_at_start: int | None = None
        self._looked_at = self._heard_at = 0.0

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
        heard = self._speak_with_learner(now)
        self.learner.note(elapsed_s, self._turns, unanswered=0)
        self._look_after(self.learner)
        for role in () if self._stopping else self._peers:
            self._look_after(role)
        before, self._states = self._states, {role.peer.name: role.state for role in (self.learner, *self._peers)}
        return self._report() if self._status and (heard or self._news or before != self._states) else None

    def say(self, stop: str = "") -> None:
        """Asks the learner for its status, tells it who is whose successor, and, where given, why to `stop`."""
        self._talk.say(self._incarnations(), stop)

    @property
    def working(self) -> bool:
        """Whether the learner or an actor is still there."""
        return any(role.alive for role in (self.learner, *self._actors))

    @property
    def replay_save_s(self) -> float:
        """Seconds that the learner may take to save its replay memory, beyond what every save takes."""
        return float(self._status.get("replay_bytes", 0)) / SAVED_BYTES_PER_S

    # ── the conversation with the learner ──

    def _speak_with_learner(self, now: float) -> bool:
        """Hears what the learner has answered, and asks when it is time; returns whether there was anything to hear."""
        handle = self.learner.handle
        if handle is None or not (handle.ready and handle.alive):
            return False
        replies = self._talk.hear()
        for reply in replies:
            self._take(reply, now)
        self._talk.ask(self._incarnations())
        return bool(replies)

    def _take(self, reply: Reply, now: float) -> None:
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

    def _lose_learner(self) -> None:
        """The next learner knows nothing yet, and the others have done nothing for it yet."""
        for role in self._peers:
            role.forgive()
        self._talk = Conversation(self._run_id, self._engine)
        self._turns, self._stopping = 0, False

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
            if self._talk.known_at > role.left_at:  # a learner that died had told it to stop, and this one goes on
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
        is_learner = role is self.learner
        known = is_learner or self._talk.known.get(role.peer.name) == role.peer.incarnation
        if known and time.monotonic() >= role.start_at:
            role.handle = self._engine.start(role.peer, self._incarnations())
            if is_learner:
                self._talk.begin(self._incarnations())
            log.info("started %s, incarnation %d", role.peer.name, role.peer.incarnation)

    def _replace(self, role: Role, handle: Handle, why: str) -> None:
        """Makes a successor of a role that has died; raises where there can be none."""
        if handle.config_error and not role.peer.incarnation:
            raise ConfigError(handle.config_error)
        name = role.peer.name
        restart = self._restarts.after(handle, early=self._status.get("env_steps") == self._steps_at_start)
        if restart.refused:
            raise RunFailed(f"{handle.failure}\n{name}: {why}; {restart.refused}".strip())
        which = f"restart {restart.number} of {self._settings.restarts}"
        self._news.append(f"{name}: {why}; {which} in {restart.delay_s:g} s")
        log.warning(self._news[-1])
        role.succeed(restart.delay_s, why)
        if role is self.learner:
            self._lose_learner()
