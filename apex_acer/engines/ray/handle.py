"""The manager's handles of roles that run inside actors of Ray: one for a role, one for several learners together."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from apex_acer.engines.engine import Handle
from apex_acer.engines.ray.cluster import Cluster
from apex_acer.protocol.messages import Peer
from apex_acer.storage.runlog import Log, shown, unsaid

log = logging.getLogger(__name__)

LAST_WORDS_S = 1.0  # in which the others report why they ended, once one has ended badly


class RayHandle(Handle):
    """A role inside an actor of Ray."""

    def __init__(
        self, peer: Peer, host: Any, log: Log, cluster: Cluster, wake: Callable[[], None], *arguments: Any
    ) -> None:
        """`host` is the actor's handle; its `run` gets the `arguments`. `wake` is called when anything has happened."""
        super().__init__(peer)
        self.host = host
        self._log, self._cluster, self._wake = log, cluster, wake
        self._node, self._pid = "", 0  # until they are known
        self._failure = ""
        self._steps: Future[int] | None = None  # the answer to how many it has made
        self._ready = self._ask(host.ready)
        self._end = self._ask(host.run, *arguments)

    @property
    def failure(self) -> str:
        self.listen()
        return self._failure

    def listen(self) -> None:
        if not self._alive:
            return
        if self._ready.done() and not self._ready.exception():
            self.ready, (self._node, self._pid) = True, self._ready.result()
            self._count_steps()
        if self._end.done():
            self._alive = False
            if error := self._end.exception():
                self._note_death(str(error))
            else:
                self._note_end(self._end.result())

    def dump(self) -> None:
        """Asks where its threads are; the answer is logged when it comes."""
        self._ask(self.host.dump).add_done_callback(self._log_stacks)

    def dismiss(self) -> None:
        self.host.dismiss.remote()

    def kill(self) -> None:
        """Kills the process, which frees the resources that Ray has reserved for it."""
        import ray

        ray.kill(self.host)
        if self._alive and self._node == self._cluster.home:
            with contextlib.suppress(ProcessLookupError):  # Ray gives a frozen process some seconds
                os.kill(self._pid, signal.SIGKILL)
        self._alive = False

    def _count_steps(self) -> None:
        """Asks an actor or the evaluator for its steps, and again after each answer."""
        if self._steps:
            if not self._steps.done() or self._steps.exception():
                return
            self.heartbeats = self._steps.result()
        if self.peer.role != "learner":
            self._steps = self._ask(self.host.steps)

    def _ask(self, method: Any, *arguments: Any) -> Future[Any]:
        future: Future[Any] = method.remote(*arguments).future()
        future.add_done_callback(lambda _: self._wake())
        return future

    def _note_end(self, end: dict[str, Any]) -> None:
        self.result, failure = end.get("result"), end.get("failure", "")
        self.config_error, self.raised = end.get("config_error", ""), end.get("raised", "")
        self._failure = f"{failure}{self.peer.name}: failed" if failure else ""
        self._log.append(end["log"].encode())
        self._log.say(self.peer.name, failure.encode().splitlines())

    def _note_death(self, message: str) -> None:
        printed = self._cluster.log_of(self._pid) if self._pid else b""
        self._log.say(self.peer.name, unsaid(printed))
        self._failure = f"{shown(printed)}\n{self.peer.name}: {cause_of_death(message)}".strip()

    def _log_stacks(self, stacks: Future[str]) -> None:
        if not stacks.exception():
            log.info("%s is here:\n%s", self.peer.name, stacks.result())


class GroupHandle(Handle):
    """Several learners as one role, whose result is the first one's; if one is lost, all of them end."""

    def __init__(self, peer: Peer, members: Sequence[Handle]) -> None:
        super().__init__(peer)
        self._members = members
        self._lost_at = 0.0

    @property
    def failure(self) -> str:
        """The failure of the learner that failed first; the others only report that they lost it."""
        failures = [member.failure for member in self._members if member.failure]
        return min(failures, key=lambda failure: "LearnerLost" in failure, default="")

    def listen(self) -> None:
        if not self._alive:
            return
        ended = [member for member in self._members if not member.alive]
        self.ready = all(member.ready for member in self._members)
        self.result = self._members[0].result
        self.config_error = next((member.config_error for member in ended if member.config_error), "")
        self.raised = next((member.raised for member in ended if member.raised), "")
        if len(ended) == len(self._members):
            self._alive = False
        elif any(member.failure or member.config_error for member in ended):
            self._lost_at = self._lost_at or time.monotonic()
            if time.monotonic() > self._lost_at + LAST_WORDS_S:
                self.kill()

    def dump(self) -> None:
        for member in self._members:
            member.dump()

    def dismiss(self) -> None:
        """Does nothing: learners end once they have saved."""

    def kill(self) -> None:
        for member in self._members:
            member.kill()
        self._alive = False


def cause_of_death(message: str) -> str:
    """The cause of an actor's death in one line, from Ray's `message`."""
    if re.search(r"its node (has )?died|node .*(is dead|was removed)", message, re.IGNORECASE):
        return "its machine was lost"
    detail = re.search(r"exit detail: (.*?)(\. |$)", message, re.MULTILINE)
    return f"its process died ({detail[1] if detail else message.strip().splitlines()[-1][:300]})"
