"""The learner's inbox: checks each message, keeps it until the learner takes it, and has it answered once."""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from apex_acer.protocol.messages import Message, Peer, Reply
from apex_acer.protocol.metrics import MAX_NAME, is_name
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import Layout

log = logging.getLogger(__name__)

MAX_KINDS, MAX_LOGGED = 100, 400  # kinds of refusals that are logged, and characters of each

Answer = Callable[[Reply], None]


class Post(NamedTuple):
    """A message, and the function that answers it."""

    message: Message
    answer: Answer


class Inbox:
    """Knows no sockets. `post` may be called from another thread than the other methods.

    Unrolls wait in order of arrival; each actor has only a few unanswered, so their number is bounded. Other messages of
    actors and the evaluator wait in a separate queue, because they are answered without being learned from. The manager is
    answered at once with `status` and the progress of all processes.

    If an actor is replaced, its unrolls that wait here are learned from like any others, but later ones are refused. (If
    actors wait for updates, the learner refuses the former, too, because another has the turn.)
    """

    def __init__(
        self, run_id: str, layout: Layout, num_columns: int, spec: EnvironmentSpec, max_waiting: int, num_slots: int = 1
    ) -> None:
        """Unrolls have `num_columns` each, of which the first is one of an actor's `num_slots`."""
        self._run_id, self._max_waiting, self._num_slots = run_id, max_waiting, num_slots
        self._layout, self._num_columns, self._spec = layout, num_columns, spec
        self._unrolls: deque[Post] = deque()
        self._others: deque[Post] = deque()
        self._arrived = threading.Condition()
        self._incarnations: dict[str, int] = {}
        self._next_sequence: dict[Peer, int] = {}
        self._unanswered: Counter[Peer] = Counter()
        self._logged: set[str] = set()
        self.status: dict[str, Any] = {}
        """Live figures for the manager; the learner replaces it."""
        self.stop_reason = ""
        """Why the run ends; once it is set, every message is answered with a stop."""
        self.stopped: set[Peer] = set()
        """Peers that were told to stop."""
        self.num_refused = 0
        self.turns = 0
        """Turns of the learner's loop so far."""

    def post(self, message: Message, answer: Answer) -> None:
        """Accepts or refuses `message`; `answer` is called exactly once, now or later."""
        with self._arrived:
            refused = self._refusal(message)
            if refused:
                self.count_refused(f"{message.peer.name}: {refused}")
                answer(Reply(message.sequence, refused=refused))
                return
            self._next_sequence[message.peer] = message.sequence + 1
            if message.peer.role == "manager":
                self.stop_reason = self.stop_reason or message.stop
                self.expect(message.incarnations)
                status = {**self.status, "progress": self._progress()}
                answer(Reply(message.sequence, stop=bool(self.stop_reason), status=status))
            elif self.stop_reason:
                self._tell_stop(Post(message, answer))
            else:
                posts = self._others if message.unroll is None else self._unrolls
                posts.append(Post(message, self._counted(message.peer, answer)))
            self._arrived.notify_all()

    def expect(self, incarnations: dict[str, int]) -> None:
        """Accepts messages of these incarnations (by name) from now on, until the manager announces others."""
        with self._arrived:
            self._incarnations |= incarnations
            current = {peer for peer in self._next_sequence if peer.role == "manager" or self.is_current(peer)}
            self._next_sequence = {peer: n for peer, n in self._next_sequence.items() if peer in current}

    def forget_peers(self) -> None:
        """Drops all waiting messages without an answer; actors and evaluator restart their sequences at 0."""
        with self._arrived:
            self._unrolls.clear()
            self._others.clear()
            self._unanswered.clear()
            self._next_sequence = {peer: n for peer, n in self._next_sequence.items() if peer.role == "manager"}

    def take_unroll(self, timeout_s: float) -> Post | None:
        """The oldest waiting unroll; None if none came within `timeout_s` seconds, or if another message came first."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._unrolls or self._others or self.stop_reason, timeout_s)
            return self._unrolls.popleft() if self._unrolls else None

    def take_other(self) -> Post | None:
        """The oldest message without an unroll; None if there is none."""
        with self._arrived:
            return self._others.popleft() if self._others else None

    @property
    def empty(self) -> bool:
        """Whether no message waits."""
        return not self._unrolls and not self._others

    def stop(self, reason: str, held: Iterable[Post] = ()) -> None:
        """Answers all waiting and all later messages, and those that the learner has `held`, with a stop."""
        with self._arrived:
            self.stop_reason = self.stop_reason or reason
            for post in (*held, *self._unrolls, *self._others):
                self._tell_stop(post)
            self._unrolls.clear()
            self._others.clear()
            self._arrived.notify_all()

    def wait_stopped(self, timeout_s: float) -> None:
        """Returns when every actor that has sent a message was told to stop, or after `timeout_s` seconds."""
        with self._arrived:
            self._arrived.wait_for(
                lambda: self.stopped.issuperset(peer for peer in self._next_sequence if peer.role == "actor"), timeout_s
            )

    def is_current(self, peer: Peer) -> bool:
        """Whether `peer` has not been replaced by another incarnation."""
        return self._incarnations.get(peer.name) == peer.incarnation

    def count_refused(self, reason: str) -> None:
        """Counts a refused message, and logs the first one of each kind."""
        self.num_refused += 1
        kind = reason.translate(str.maketrans("", "", "0123456789"))[:MAX_LOGGED]
        if kind not in self._logged and len(self._logged) < MAX_KINDS:  # so that nobody can fill the memory or the log
            self._logged.add(kind)
            log.warning("refused a message: %s", reason[:MAX_LOGGED])

    def _progress(self) -> dict[str, list[int]]:
        """By name, the messages accepted from the current incarnation and those unanswered; for the learner, its turns."""
        peers = {peer.name: [taken, self._unanswered[peer]] for peer, taken in self._next_sequence.items()}
        return {**peers, "learner": [self.turns, 0]}

    def _counted(self, peer: Peer, answer: Answer) -> Answer:
        self._unanswered[peer] += 1

        def counted(reply: Reply) -> None:
            with self._arrived:
                self._unanswered[peer] -= 1
            answer(reply)

        return counted

    def _tell_stop(self, post: Post) -> None:
        self.stopped.add(post.message.peer)
        post.answer(Reply(post.message.sequence, stop=True))

    def _refusal(self, message: Message) -> str:
        if message.run_id != self._run_id:
            return f"run id {message.run_id!r} is another run's"
        peer = message.peer
        if peer.role != "manager" and not self.is_current(peer):
            return f"incarnation {peer.incarnation} is not the current one"
        expected = self._next_sequence.get(peer, 0)
        if message.sequence != expected:
            return f"sequence {message.sequence}, expected {expected}"
        if odd := [name for row in message.rows for name in row if not is_name(name)]:
            return f"a metric is named {odd[0]!r:.60}; allowed: 1 to {MAX_NAME} printable characters"
        scores = [row.get("eval_return", math.nan) for row in message.rows]
        if peer.role == "evaluator" and not all(map(math.isfinite, scores)):
            return "a row without a finite eval_return"
        return self._unroll_refusal(message) if message.unroll else ""

    def _unroll_refusal(self, message: Message) -> str:
        unroll = message.unroll
        assert unroll is not None
        if message.peer.role != "actor":
            return "only actors send unrolls"
        if sum(self.is_current(post.message.peer) for post in self._unrolls) >= self._max_waiting:
            return f"more than {self._max_waiting} unrolls wait"
        if message.slot >= self._num_slots:
            return f"slot {message.slot}, allowed 0 to {self._num_slots - 1}"
        return self._layout.check(unroll, self._num_columns) or unroll.refusal(self._spec)
