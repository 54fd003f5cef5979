"""The learner's inbox, which keeps messages until the learner takes them, and the barrier, which makes actors wait."""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from apex_acer.protocol.messages import Message, Peer, Reply
from apex_acer.protocol.metrics import MAX_NAME, is_client, is_name
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
    """The messages that wait for the learner, by whatever transport they come; `post` may be called from another thread.

    Unrolls wait in order of arrival; each actor has only a few unanswered, so their number is bounded. Other messages of
    actors and the evaluator wait in a separate queue, because they are answered without being learned from. The manager is
    answered at once with `status` and the progress of all processes.

    If an actor is replaced, its unrolls that wait here are learned from like any others, but later ones are refused. (If
    actors wait for updates, the learner refuses the waiting ones, too, because another actor has the turn.)
    """

    def __init__(
        self, run_id: str, layout: Layout, num_columns: int, spec: EnvironmentSpec, max_waiting: int, num_slots: int = 1
    ) -> None:
        """An unroll has `num_columns` sequences, the first of which is of one of an actor's `num_slots` environments."""
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
            if refused := self._refusal(message):
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
        return not self._unrolls and not self._others

    def stop(self, reason: str, unanswered: Iterable[Post] = ()) -> None:
        """Answers all waiting and all later messages with a stop, and those that the learner has left `unanswered`."""
        with self._arrived:
            self.stop_reason = self.stop_reason or reason
            for post in (*unanswered, *self._unrolls, *self._others):
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
        pattern = reason.translate(str.maketrans("", "", "0123456789"))[:MAX_LOGGED]
        has_room = len(self._logged) < MAX_KINDS  # nobody can fill the memory or the log
        if has_room and pattern not in self._logged:
            self._logged.add(pattern)
            log.warning("refused a message: %s", reason[:MAX_LOGGED])

    def _progress(self) -> dict[str, list[int]]:
        """By name, the messages accepted from the current incarnation and those unanswered; for the learner, its turns."""
        peers = {peer.name: [accepted, self._unanswered[peer]] for peer, accepted in self._next_sequence.items()}
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
        if odd := [name for name in message.clients if not is_client(name)]:
            return f"a client is named {odd[0]!r:.60}; allowed: 1 to {MAX_NAME} letters, digits and _.@-"
        if odd := [name for row in (*message.rows, *message.clients.values()) for name in row if not is_name(name)]:
            return f"a metric is named {odd[0]!r:.60}; allowed: 1 to {MAX_NAME} printable characters"
        scores = [row.get("eval_return", math.nan) for row in message.rows]
        if peer.role == "evaluator" and not all(map(math.isfinite, scores)):
            return "a row without a finite eval_return"
        if message.unroll is None:
            return ""
        if peer.role != "actor":
            return "only actors send unrolls"
        if sum(self.is_current(post.message.peer) for post in self._unrolls) >= self._max_waiting:
            return f"more than {self._max_waiting} unrolls wait"
        if message.slot >= self._num_slots:
            return f"slot {message.slot}, allowed 0 to {self._num_slots - 1}"
        return self._layout.check(message.unroll, self._num_columns) or message.unroll.refusal(self._spec)


class Barrier:
    """Holds the messages of actors until they may be answered.

    An actor makes one unroll for each answer. If actors wait for updates, as many are answered as the next batch still needs
    unrolls, so all of these are acted with the newest weights; the others are answered after the update.
    """

    def __init__(self, needed: int, is_current: Callable[[Peer], bool]) -> None:
        """`needed` is the number of unrolls in a batch; 0: actors do not wait. `is_current`: a peer was not replaced."""
        self._needed, self._is_current = needed, is_current
        self._waiting: deque[Post] = deque()
        self._acting: set[Peer] = set()

    def refusal(self, message: Message, version: int) -> str:
        """Why the unroll in `message` may not be in a batch for weights of `version`; empty if it may."""
        if not self._needed:
            return ""
        if not self._is_current(message.peer):  # another has its turn
            return "the actor was replaced"
        acted_with = message.weights_version
        return "" if acted_with == version else f"weights of version {acted_with}, expected {version}"

    def put(self, post: Post) -> None:
        """Takes the message of an actor, which waits for its answer from here on."""
        self._acting.discard(post.message.peer)
        self._waiting.append(post)

    def release(self, num_collected: int) -> Iterator[Post]:
        """The messages to answer, if the next batch has `num_collected` unrolls so far."""
        # an actor that was replaced does not act any more, so another takes its turn
        self._acting = {peer for peer in self._acting if self._is_current(peer)}
        while self._waiting and (not self._needed or num_collected + len(self._acting) < self._needed):
            post = self._waiting.popleft()
            if self._needed and self._is_current(post.message.peer):
                self._acting.add(post.message.peer)
            yield post

    def clear(self) -> list[Post]:
        """Forgets all actors; returns the messages that were not answered."""
        waiting, self._waiting = list(self._waiting), deque()
        self._acting.clear()
        return waiting
