"""The supervisor starts a run's processes, watches them, and restarts those that fail, on any engine.

A process that dies or hangs is replaced by its next incarnation, after a pause that grows, until it has died too often or
has raised the same error twice before the first unroll was accepted. A new learner continues from the newest checkpoint,
and the other processes then talk to it. The learner's status tells how far the actors are.
"""

from __future__ import annotations

import logging
import time

from apex_acer.config import ConfigError
from apex_acer.engines.engine import Engine, Handle, Run
from apex_acer.manager.supervised_process import SupervisedProcess
from apex_acer.protocol.messages import Message, Peer, Reply, Status
from apex_acer.storage.checkpoint import newest
from apex_acer.storage.folder import where
from apex_acer.system.output import printable_lines

log = logging.getLogger(__name__)

LOOK_S = 0.5  # between two questions to the learner
LONGEST_LOOK_S = 2 * LOOK_S  # the most that counts between two looks: after more, this process was stopped or busy
SAVED_BYTES_PER_S = 50e6  # of replay, on a slow disk
BACKOFF_S = 0.5  # pause before a restart, doubled for each other death within ...
QUICK_S = 40.0  # ... the last seconds, so that who has worked for a while comes back at once ...
DOUBLINGS = 4  # ... at most this often
DUMP_S = 0.5  # in which a hung process writes where it is, before it is killed


class RunFailed(Exception):
    """A process of the run ended badly and cannot be restarted; the message is its traceback, safe to print."""

    def __init__(self, text: str) -> None:
        super().__init__(printable_lines(text))


class Conversation:
    """The manager's messages to one incarnation of the learner, and its replies."""

    def __init__(self, run_id: str, engine: Engine) -> None:
        self._run_id, self._engine = run_id, engine
        self.known: dict[str, int] = {}  # incarnations of the other processes that the learner has acknowledged ...
        self.known_at = 0.0  # ... and the monotonic seconds at which they were sent to it
        self._sent: dict[str, int] = {}
        self._sent_at = 0.0
        self._messages = self._unanswered = 0
        self._met = False

    def begin(self, incarnations: dict[str, int]) -> None:
        """Takes note that the learner was started and accepts the others in these `incarnations`."""
        self.known, self.known_at = incarnations, time.monotonic()

    def send(self, incarnations: dict[str, int], stop: str = "") -> None:
        """Asks for the learner's status and announces `incarnations`; a `stop` reason ends the run."""
        self._sent, self._sent_at = incarnations, time.monotonic()
        message = Message(self._run_id, Peer("manager", 0, 0), self._messages, stop=stop, incarnations=incarnations)
        self._engine.link.send(message)
        self._messages += 1
        self._unanswered += 1

    def send_if_due(self, incarnations: dict[str, int]) -> None:
        """Sends once everything is answered and `LOOK_S` has passed, or at once if `incarnations` have changed."""
        is_time = time.monotonic() >= self._sent_at + LOOK_S
        if not self._unanswered and (is_time or self._sent != incarnations):
            self.send(incarnations)

    def receive(self) -> list[Reply]:
        """The replies that have come; at the first one, the other processes are told of this learner."""
        replies = []
        while reply := self._engine.link.receive(0):
            if reply.refused:
                raise RuntimeError(f"the learner refused the manager's message: {reply.refused}")
            replies.append(reply)
            self._unanswered -= 1
        if replies and not self._met:
            self._engine.reconnect()
            self._met = True
        if replies and not self._unanswered:
            self.known, self.known_at = self._sent, self._sent_at
        return replies


class Supervisor:
    """Starts the processes of a run, talks to its learner, and restarts the processes that fail."""

    def __init__(self, run: Run, engine: Engine) -> None:
        config, self._settings = run.config, run.config.supervision
        self._run_id, self._folder, self._engine = run.run_id, run.folder, engine
        hung_s, most = self._settings.hung_seconds, config.max_unanswered
        self.learner = SupervisedProcess(Peer("learner", 0, 0), hung_s)
        self._actors = [SupervisedProcess(Peer("actor", i, 0), hung_s, most) for i in range(config.actors.count)]
        evaluation_s = 60 * self._settings.evaluation_minutes
        evaluator = SupervisedProcess(Peer("evaluator", 0, 0), evaluation_s, key="evaluation_minutes")
        self._peers = [*self._actors, *([evaluator] if config.evaluation.every else [])]
        # of remote clients, until the user has been told it
        self._new_url = config.environment.remote.url if config.environment.is_remote else ""
        self._conversation = Conversation(self._run_id, engine)
        self._turns = 0  # of the learner's loop
        self._stopping = False
        self._status: Status = {}
        self._states: dict[str, str] = {}
        self._news: list[str] = []
        self._raised_early: set[tuple[str, str]] = set()  # roles, and what they raised before the first unroll
        self._steps_at_start: int | None = None
        self._looked_at = self._heard_at = 0.0

    def tend(self) -> Status | None:
        """Looks after every process once, without waiting.

        Returns:
            If anything is new, the learner's newest status, with `restarts` and `states` (`SupervisedProcess.state`) by
            name, and what has happened since in `news`.

        Raises:
            ConfigError: if a process cannot work as configured.
            RunFailed: if one died and cannot be restarted; the message has its traceback.
        """
        now = time.monotonic()
        elapsed_s, self._looked_at = min(now - self._looked_at, LONGEST_LOOK_S), now
        heard = self._talk_to_learner(now)
        self.learner.note(elapsed_s, self._turns, unanswered=0)
        self._look_after(self.learner)
        for process in () if self._stopping else self._peers:
            self._look_after(process)
        if self._new_url and (handle := self._actors[0].handle) and handle.ready:
            self._news.append(f"remote clients connect to {self._new_url}")
            log.info(self._news[-1])
            self._new_url = ""
        every = (self.learner, *self._peers)
        before, self._states = self._states, {each.peer.name: each.state for each in every}
        if not (self._status and (heard or self._news or before != self._states)):
            return None
        restarts = {each.peer.name: each.peer.incarnation for each in every}
        news, self._news = self._news, []
        return {**self._status, "restarts": restarts, "states": self._states, "news": news}

    def stop_learner(self, reason: str) -> None:
        """Tells the learner to save and to end the run for this `reason`."""
        self._conversation.send(self._incarnations(), reason)

    def drop_replies(self) -> None:
        """Takes the replies of a learner that has been told to stop, and looks at none."""
        if self.learner.handle:
            while self._engine.link.receive(0):
                pass

    def dismiss(self) -> None:
        """Has actors and evaluator leave, because the run is over."""
        for process in self._peers:
            if process.handle and process.handle.alive:
                process.handle.dismiss()

    @property
    def is_early(self) -> bool:
        """Whether the learner has accepted no unroll yet."""
        return self._status.get("env_steps") == self._steps_at_start

    @property
    def working(self) -> bool:
        """Whether a process is still alive that ends in good order: it got ready, and a learner has saved."""
        learner = self.learner.handle
        leaving = [process.handle for process in self._peers] + [learner if learner and learner.result else None]
        return any(handle and handle.ready and handle.alive for handle in leaving)

    @property
    def replay_save_s(self) -> float:
        """Seconds that the learner may take to save its replay memory, in addition to any other save."""
        return float(self._status.get("replay_bytes", 0)) / SAVED_BYTES_PER_S

    # ── the conversation with the learner ──

    def _talk_to_learner(self, now: float) -> bool:
        """Takes the learner's replies, and asks again when it is time; returns whether there was a reply."""
        handle = self.learner.handle
        if handle is None or not (handle.ready and handle.alive):
            return False
        replies = self._conversation.receive()
        for reply in replies:
            self._take(reply, now)
        self._conversation.send_if_due(self._incarnations())
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
        for process in self._peers:
            process.note(elapsed_s, *progress.get(process.peer.name, (0, 0)))

    def _incarnations(self) -> dict[str, int]:
        return {process.peer.name: process.peer.incarnation for process in self._peers}

    # ── life and death ──

    def _look_after(self, process: SupervisedProcess) -> None:
        handle = process.handle
        if handle is None:
            self._start(process)
        elif handle.alive:
            if why := process.hangs:
                self._end_hung(process, handle, handle.raised or why)  # it may hang as it closes what raised
        elif why := process.cause:
            self._replace(process, handle, why)
        else:
            process.left_at = process.left_at or time.monotonic()
            # a learner has told it to stop and then died; its successor, which knows of no stop, needs it
            if self._conversation.known_at > process.left_at:
                process.schedule_restart(0.0)

    def _end_hung(self, process: SupervisedProcess, handle: Handle, why: str) -> None:
        if not process.dumped_at:
            handle.dump()
            process.dumped_at = time.monotonic()
        elif time.monotonic() >= process.dumped_at + DUMP_S:
            handle.kill()
            self._replace(process, handle, why)

    def _start(self, process: SupervisedProcess) -> None:
        """Starts the process if it is time and the learner has acknowledged this incarnation."""
        peer, is_learner = process.peer, process is self.learner
        known = is_learner or self._conversation.known.get(peer.name) == peer.incarnation
        if known and time.monotonic() >= process.start_at:
            process.handle = self._engine.start(peer, self._incarnations())
            if is_learner:
                self._conversation.begin(self._incarnations())
            log.info("started %s, incarnation %d", peer.name, peer.incarnation)

    def _replace(self, process: SupervisedProcess, handle: Handle, why: str) -> None:
        if handle.config_error and not process.peer.incarnation:
            raise ConfigError(handle.config_error)
        name, settings = process.peer.name, self._settings
        deaths = process.count_death(60 * settings.window_minutes)
        if refused := self._refusal(handle, deaths):
            raise RunFailed(f"{handle.failure}\n{name}: {why}; {refused}".strip())
        delay_s = BACKOFF_S * 2 ** min(process.deaths_within(QUICK_S) - 1, DOUBLINGS)
        self._news.append(f"{name}: {why}; restart {deaths} of {settings.restarts} in {delay_s:g} s")
        log.warning(self._news[-1])
        process.schedule_restart(delay_s, why)
        if process is self.learner:
            for other in self._peers:
                other.reset_idle_time()
            self._conversation = Conversation(self._run_id, self._engine)
            self._turns, self._stopping = 0, False

    def _refusal(self, handle: Handle, deaths: int) -> str:
        """Why the process of `handle` is not restarted after this many recent `deaths`; empty if it is."""
        is_learner, settings = handle.peer.role == "learner", self._settings
        if not self._engine.restarts:
            return "this engine restarts no process"
        if is_learner and handle.raised:  # a full disk, for example, or numbers that are no longer finite
            return "a restart would hit the same error"
        if is_learner and newest(where(self._folder)) is None:
            return "there is no checkpoint to continue from"
        if self.is_early and handle.raised:  # a mistake in an environment makes all processes of a role raise the same
            cause = (handle.peer.role, handle.raised)
            if cause in self._raised_early:
                return "the same error came before, and no unroll was accepted yet"
            self._raised_early.add(cause)
        if deaths > settings.restarts:
            times = f"{deaths} times within {settings.window_minutes:g} minutes"
            return f"it ended {times}, supervision.restarts allows {settings.restarts}"
        return ""
