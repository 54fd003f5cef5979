"""The ray engine: starts the actors of Ray that host the roles, and sees how they end.

The manager's process owns them all: they end with it, Ray restarts none, and the supervisor does.
"""

from __future__ import annotations

import dataclasses
import logging
import select
import sys
from typing import TYPE_CHECKING, Any

from apex_acer import __version__
from apex_acer.config.runfile import from_dict, to_dict
from apex_acer.engines.engine import Engine, Handle, Run
from apex_acer.engines.ray.cluster import Cluster
from apex_acer.engines.ray.group import GroupHandle, GroupLink, num_gpus
from apex_acer.engines.ray.handle import RayHandle
from apex_acer.engines.ray.shares import cpu_share, require_fit
from apex_acer.protocol.messages import Link, Peer
from apex_acer.storage.runlog import Log
from apex_acer.system.process import environment_variables
from apex_acer.system.waker import Waker

# what imports Ray is imported once the cluster has said on which addresses it is to listen
if TYPE_CHECKING:
    from apex_acer.engines.ray.hosts import Start

log = logging.getLogger(__name__)

MOST_CALLS = 10_000  # at the same time, each of which only waits: a few from each of the peers


class RayEngine(Engine):
    """The hosts of one learner or several, and of everybody who speaks with them."""

    restarts = True
    link: Link

    def __init__(self, run: Run) -> None:
        self._run = run
        self._handles: dict[str, RayHandle | GroupHandle] = {}
        self._learners: list[Any] = []
        self._waker = Waker()
        self._log = Log(run.folder)
        self._cluster = Cluster(run.config.ray, run.folder / "log.txt")
        try:
            self._cpus, self._gpus = self._share(), self._share_gpus()
            self._places = self._cluster.reserve(self._bundles(), self._num_here)
        except Exception:
            self.close()
            raise

    def start(self, peer: Peer, incarnations: dict[str, int]) -> Handle:
        """Starts the role's host; whether it is `ready` shows after a `wait`."""
        from apex_acer.engines.ray.hosts import PeerHost, Start

        if before := self._handles.pop(peer.name, None):
            before.kill()
        # the module of a user's own algorithm is found there once `sys.path` is
        config = from_dict(to_dict(self._run.config), import_modules=False)
        run = dataclasses.replace(self._run, config=config, resume=self._run.resume or peer.incarnation > 0)
        start = Start(run, peer, __version__, sys.path, incarnations, self._cluster.home)
        if peer.role == "learner":
            handle = self._start_learners(start)
        else:
            handle = self._handle(peer, self._make(PeerHost, peer).remote(start, self._learner_of(peer)))
        self._handles[peer.name] = handle
        return handle

    def _start_learners(self, start: Start) -> RayHandle | GroupHandle:
        """One, or several that meet where the first one listens."""
        from apex_acer.engines.ray.hosts import LearnerHost
        from apex_acer.engines.ray.link import RayLink

        peers = [dataclasses.replace(start.peer, index=rank) for rank in range(self._run.config.learner.count)]
        self._learners = [self._make(LearnerHost, peer).remote(start._replace(peer=peer)) for peer in peers]
        links = [RayLink(learner, wake=self._waker.wake) for learner in self._learners]
        if len(peers) == 1:
            self.link = links[0]
            return self._handle(start.peer, self._learners[0])
        self.link = GroupLink(links)
        place = self._learners[0].listen.remote()
        members = [self._handle(*member, place) for member in zip(peers, self._learners, strict=True)]
        return GroupHandle(start.peer, members)

    def _handle(self, peer: Peer, host: Any, *arguments: Any) -> RayHandle:
        return RayHandle(peer, host, self._log, self._cluster, self._waker.wake, *arguments)

    def _learner_of(self, peer: Peer) -> Any:
        """With whom an actor or the evaluator speaks."""
        return self._learners[peer.index % len(self._learners) if peer.role == "actor" else 0]

    def reconnect(self) -> None:
        """Tells everybody who the newest learner is."""
        for handle in self._handles.values():
            if isinstance(handle, RayHandle) and handle.peer.role != "learner":
                handle.host.reconnect.remote(self._learner_of(handle.peer))

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
        self._log.close()

    def _share(self) -> float:
        """CPUs of each role; a cluster that was joined may grow until they fit."""
        config = self._run.config
        cpus = {node: resources.get("CPU", 0.0) for node, resources in self._cluster.nodes().items()}
        anywhere = config.actors.count + config.learner.count - 1
        roles = cpus, self._cluster.home, anywhere, self._num_here
        share = cpu_share(config.ray.actor_cpus, *roles)
        if not config.ray.address:
            require_fit(share, *roles)
        return share

    def _share_gpus(self) -> int:
        gpus = {node: resources.get("GPU", 0.0) for node, resources in self._cluster.nodes().items()}
        return num_gpus(self._run.config.learner, sum(gpus.values()), gpus[self._cluster.home])

    def _make(self, host: type, peer: Peer) -> Any:
        """The class to start `host` with; the first learner and the evaluator write the run's folder, which is here."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        variables = environment_variables()
        if not (peer.role == "learner" and self._run.config.learner.device in ("auto", "cuda")):
            variables["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"] = "1"  # devices that are named are the machine's
        options: dict[str, Any] = {"runtime_env": {"env_vars": variables}, "num_cpus": self._cpus}
        if peer.role != "actor":
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(self._places, self._bundle_of(peer))
        if peer.role == "learner":
            options |= {"num_gpus": self._gpus, "max_concurrency": MOST_CALLS}
        return ray.remote(host).options(max_restarts=0, max_task_retries=0, **options)

    def _bundles(self) -> list[dict[str, float]]:
        """What all but the actors need, so that nobody takes the place of one that is started again."""
        learner: dict[str, float] = {"CPU": self._cpus} | ({"GPU": 1.0} if self._gpus else {})
        evaluator = [{"CPU": self._cpus}] * (self._num_here - 1)
        return [learner, *evaluator, *[learner] * (self._run.config.learner.count - 1)]

    def _bundle_of(self, peer: Peer) -> int:
        """Which of them a learner or the evaluator has."""
        if peer.role == "evaluator":
            return 1
        return self._num_here + peer.index - 1 if peer.index else 0

    @property
    def _num_here(self) -> int:
        """Roles that write the run's folder: the first learner and the evaluator."""
        return 2 if self._run.config.evaluation.every else 1
