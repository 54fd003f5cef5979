"""The ray engine: starts the actors of Ray that host the roles, and sees how they end.

The manager's process owns them all: they end with it, Ray restarts none, and the supervisor does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import re
import select
import signal
import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apex_acer import __version__
from apex_acer.engines.engine import Engine, Handle, Run
from apex_acer.engines.process import environment_variables
from apex_acer.engines.ray.cluster import Cluster
from apex_acer.engines.ray.shares import cpu_share, require_fit
from apex_acer.engines.waker import Waker
from apex_acer.messages import Peer

# what imports Ray is imported once the cluster has said on which addresses it is to listen
if TYPE_CHECKING:
    from apex_acer.engines.ray.hosts import End
    from apex_acer.engines.ray.link import RayLink

log = logging.getLogger(__name__)

RESERVED = ("learner", "evaluator")  # who runs on this machine
MOST_CALLS = 10_000  # at the same time, each of which only waits: a few from each of the peers


class RayHandle(Handle):
    """A role that an actor of Ray hosts."""

    def __init__(self, peer: Peer, host: Any, folder: Path, cluster: Cluster, wake: Callable[[], None]) -> None:
        super().__init__(peer)
        self.host = host
        self._folder, self._cluster, self._wake = folder, cluster, wake
        self._node, self._pid = "", 0  # until they are known
        self._alive = True
        self._failure = ""
        self._ready = self._ask(host.ready)
        self._end = self._ask(host.run)

    @property
    def alive(self) -> bool:
        """Whether the role works, or will; once it does not, how it ended is known."""
        self.listen()
        return self._alive

    @property
    def failure(self) -> str:
        """The traceback, or how its process died; empty where it ended well or still runs."""
        self.listen()
        return self._failure

    def listen(self) -> None:
        """Takes what there is to know, without waiting."""
        if not self._alive:
            return
        if self._ready.done() and not self._ready.exception():
            self.ready, (self._node, self._pid) = True, self._ready.result()
        if self._end.done():
            self._alive = False
            if error := self._end.exception():
                self._note_death(str(error))
            else:
                self._note_end(self._end.result())

    def dump(self) -> None:
        """Asks where its threads are, which is logged when it answers."""
        self._ask(self.host.dump).add_done_callback(self._log_stacks)

    def kill(self) -> None:
        """Ends the process, and with it what Ray has set aside for it."""
        import ray

        ray.kill(self.host)
        if self._alive and self._node == self._cluster.home:
            with contextlib.suppress(ProcessLookupError):  # Ray gives a frozen one some seconds
                os.kill(self._pid, signal.SIGKILL)
        self._alive = False

    def _ask(self, method: Any) -> Future[Any]:
        future: Future[Any] = method.remote().future()
        future.add_done_callback(lambda _: self._wake())
        return future

    def _note_end(self, end: End) -> None:
        self.result, self.config_error, self.raised = end.result, end.config_error, end.raised
        self._failure = f"{end.failure}{self.peer.name}: failed" if end.failure else ""
        self._write(end.log + end.failure)

    def _note_death(self, said: str) -> None:
        self._write(printed := self._cluster.log_of(self._pid) if self._pid else "")
        self._failure = f"{printed}\n{self.peer.name}: {cause_of_death(said)}".strip()

    def _write(self, printed: str) -> None:
        """Gives it to the run's log; a full disk must not keep us from the rest."""
        with contextlib.suppress(OSError), (self._folder / "log.txt").open("a", encoding="utf-8") as file:
            if printed:
                file.write(f"── {self.peer.name} ──\n{printed}")

    def _log_stacks(self, stacks: Future[str]) -> None:
        if not stacks.exception():
            log.info("%s is here:\n%s", self.peer.name, stacks.result())


class RayEngine(Engine):
    """A learner's host, and the hosts of everybody who speaks with it."""

    restarts = True
    link: RayLink

    def __init__(self, run: Run) -> None:
        self._run = run
        self._handles: dict[str, RayHandle] = {}
        self._waker = Waker()
        self._cluster = Cluster(run.config.ray, run.folder / "log.txt")
        try:
            self._cpus = self._share()
            self._places = self._cluster.reserve(self._bundles())
        except Exception:
            self.close()
            raise

    def start(self, peer: Peer, incarnations: dict[str, int]) -> Handle:
        """Starts the role's host; whether it is `ready` shows after a `wait`."""
        from apex_acer.engines.ray.hosts import LearnerHost, PeerHost, Start
        from apex_acer.engines.ray.link import RayLink

        if before := self._handles.pop(peer.name, None):
            before.kill()
        run = dataclasses.replace(self._run, resume=self._run.resume or peer.incarnation > 0)
        start = Start(run, peer, __version__, sys.path, incarnations)
        if peer.role == "learner":
            self._learner = self._make(LearnerHost, peer).remote(start)
            self.link = RayLink(self._learner, wake=self._waker.wake)
            host = self._learner
        else:
            host = self._make(PeerHost, peer).remote(start, self._learner)
        handle = RayHandle(peer, host, self._run.folder, self._cluster, self._waker.wake)
        self._handles[peer.name] = handle
        return handle

    def reconnect(self) -> None:
        """Tells everybody who the newest learner is."""
        for handle in self._handles.values():
            if handle.peer.role != "learner":
                handle.host.reconnect.remote(self._learner)

    def wait(self, timeout_s: float) -> None:
        """Waits for a role to be ready or to end, for a reply, for `wake`, or for the time to pass."""
        ready, _, _ = select.select([self._waker.woken], [], [], timeout_s)
        if ready:
            self._waker.clear()
        for handle in self._handles.values():
            handle.listen()

    def wake(self) -> None:
        """Ends a `wait`."""
        self._waker.wake()

    def close(self) -> None:
        """Kills who is left, and leaves or ends the cluster."""
        for handle in self._handles.values():
            handle.kill()
        self._cluster.close()
        self._waker.close()

    def _share(self) -> float:
        """CPUs of each role; a cluster that was joined may grow until they fit."""
        config = self._run.config
        cpus = {node: resources.get("CPU", 0.0) for node, resources in self._cluster.nodes().items()}
        roles = cpus, self._cluster.home, config.actors.count, self._num_others
        share = cpu_share(config.ray.actor_cpus, *roles)
        if not config.ray.address:
            require_fit(share, *roles)
        return share

    def _make(self, host: type, peer: Peer) -> Any:
        """The class to start `host` with; the learner and the evaluator write the run's folder, which is here."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        variables = environment_variables()
        if not (peer.role == "learner" and self._run.config.learner.device in ("auto", "cuda")):
            variables["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"] = "1"  # devices that are named are the machine's
        options: dict[str, Any] = {"runtime_env": {"env_vars": variables}, "num_cpus": self._cpus}
        if peer.role != "actor":
            place = PlacementGroupSchedulingStrategy(self._places, RESERVED.index(peer.role))
            options["scheduling_strategy"] = place
        if peer.role == "learner":
            options |= {"num_gpus": self._num_gpus(), "max_concurrency": MOST_CALLS}
        return ray.remote(host).options(max_restarts=0, max_task_retries=0, **options)

    def _bundles(self) -> list[dict[str, float]]:
        """What `RESERVED` need, so that nobody takes the place of one that is started again."""
        bundles = [{"CPU": self._cpus} for _ in RESERVED[: self._num_others]]
        if self._num_gpus():
            bundles[0]["GPU"] = 1
        return bundles

    @property
    def _num_others(self) -> int:
        return 2 if self._run.config.evaluation.every else 1

    def _num_gpus(self) -> int:
        """1 where the learner computes on one and this machine has one for Ray to give; it says itself what is missing."""
        device, there = self._run.config.learner.device, self._cluster.nodes()[self._cluster.home]
        return 1 if there.get("GPU", 0) >= 1 and (device == "auto" or device.startswith("cuda")) else 0


def cause_of_death(said: str) -> str:
    """In one line, of what Ray `said`."""
    if re.search(r"its node (has )?died|node .*(is dead|was removed)", said, re.IGNORECASE):
        return "its machine was lost"
    detail = re.search(r"exit detail: (.*?)(\. |$)", said, re.MULTILINE)
    return f"its process died ({detail[1] if detail else said.strip().splitlines()[-1][:300]})"
