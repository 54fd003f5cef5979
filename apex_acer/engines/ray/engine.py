"""The ray engine starts the actors of Ray that host the roles, and notices how they end.

They belong to the manager's process and end with it. Ray restarts none of them; the supervisor does.
"""

from __future__ import annotations

import dataclasses
import math
import select
from collections.abc import Mapping
from typing import Any

from apex_acer import __version__
from apex_acer.config import ConfigError, LearnerConfig, require
from apex_acer.engines.engine import Engine, Handle, Run
from apex_acer.engines.ray.cluster import Cluster
from apex_acer.engines.ray.handle import GroupHandle, RayHandle
from apex_acer.protocol.messages import Link, Peer
from apex_acer.storage.runlog import Log
from apex_acer.system.process import environment_variables
from apex_acer.system.signals import Waker

# modules that import Ray are imported inside functions, once the cluster has set the addresses on which Ray listens
LEAST = 1e-4  # the smallest part of a CPU that Ray reserves
MOST_CALLS = 10_000  # of a learner's host at the same time; each only waits, and each peer makes only a few


class RayEngine(Engine):
    """An actor of Ray for each learner, and for each role that talks to them."""

    restarts = True
    link: Link

    def __init__(self, run: Run) -> None:
        self._run = run
        self._num_learners = run.config.learner.count
        # the first learner and the evaluator, if any, write the run's folder and so run on this machine
        self._num_here = 2 if run.config.evaluation.every else 1
        self._handles: dict[str, RayHandle | GroupHandle] = {}
        self._learners: list[Any] = []
        self._waker = Waker()
        self._log = Log(run.folder)
        self._cluster = Cluster(run.config.ray, run.folder / "log.txt")
        try:
            nodes, home, ray = self._cluster.nodes(), self._cluster.home, run.config.ray
            cpus, gpus = ({node: has.get(kind, 0.0) for node, has in nodes.items()} for kind in ("CPU", "GPU"))
            anywhere, may_grow = run.config.actors.count + self._num_learners - 1, bool(ray.address)
            self._cpus = cpu_share(ray.actor_cpus, cpus, home, anywhere, self._num_here, may_grow=may_grow)
            self._gpus = num_gpus(run.config.learner, sum(gpus.values()), gpus[home])
            self._places = self._cluster.reserve(self._bundles(), self._num_here)
        except Exception:
            self.close()
            raise

    def start(self, peer: Peer, incarnations: dict[str, int]) -> Handle:
        from apex_acer.engines.ray.hosts import PeerHost

        if previous := self._handles.pop(peer.name, None):
            previous.kill()
        start = self._run.start_of(peer, incarnations, version=__version__, home=self._cluster.home)
        if peer.role == "learner":
            self._handles[peer.name] = self._start_learners(peer, start)
        else:
            host = self._make(PeerHost, peer).remote(start, self._learner_of(peer))
            self._handles[peer.name] = self._handle(peer, host)
        return self._handles[peer.name]

    def _start_learners(self, peer: Peer, start: dict[str, Any]) -> RayHandle | GroupHandle:
        """Starts one learner, or several that meet at the address of the first; the index of each is its rank."""
        from apex_acer.engines.ray.hosts import LearnerHost
        from apex_acer.engines.ray.link import RayLink

        peers = [dataclasses.replace(peer, index=rank) for rank in range(self._num_learners)]
        self._learners = [
            self._make(LearnerHost, each).remote({**start, "peer": ["learner", each.index, each.incarnation]})
            for each in peers
        ]
        self.link = RayLink(*self._learners, wake=self._waker.wake)
        if len(peers) == 1:
            return self._handle(peer, self._learners[0])
        place = self._learners[0].listen.remote()
        members = [self._handle(*member, place) for member in zip(peers, self._learners, strict=True)]
        return GroupHandle(peer, members)

    def _handle(self, peer: Peer, host: Any, *arguments: Any) -> RayHandle:
        return RayHandle(peer, host, self._log, self._cluster, self._waker.wake, *arguments)

    def _learner_of(self, peer: Peer) -> Any:
        return self._learners[peer.index % len(self._learners) if peer.role == "actor" else 0]

    def reconnect(self) -> None:
        """Tells the other roles which learner is theirs."""
        for handle in self._handles.values():
            if isinstance(handle, RayHandle) and handle.peer.role != "learner":
                handle.host.reconnect.remote(self._learner_of(handle.peer))

    def wait(self, timeout_s: float) -> None:
        ready, _, _ = select.select([self._waker.woken], [], [], timeout_s)
        if ready:
            self._waker.clear()
        for handle in self._handles.values():
            handle.listen()

    def wake(self) -> None:
        self._waker.wake()

    def close(self) -> None:
        for handle in self._handles.values():
            handle.kill()
        self._cluster.close()
        self._waker.close()
        self._log.close()

    def _make(self, host: type, peer: Peer) -> Any:
        """The class `host` as a remote class of Ray, with the resources and place of `peer`."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        variables, config = environment_variables(), self._run.config
        if not (peer.role == "learner" and config.learner.device in ("auto", "cuda")):
            variables["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"] = "1"  # device numbers are the machine's
        options: dict[str, Any] = {"runtime_env": {"env_vars": variables}, "num_cpus": self._cpus}
        if peer.role != "actor":
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(self._places, self._bundle_of(peer))
        if peer.role == "learner":
            options |= {"num_gpus": self._gpus, "max_concurrency": MOST_CALLS}
        return ray.remote(host).options(max_restarts=0, max_task_retries=0, **options)

    def _bundles(self) -> list[dict[str, float]]:
        """The reservations of learners and evaluator, so that no other role takes their place during a restart."""
        learner: dict[str, float] = {"CPU": self._cpus} | ({"GPU": 1.0} if self._gpus else {})
        evaluator = [{"CPU": self._cpus}] * (self._num_here - 1)
        return [learner, *evaluator, *[learner] * (self._num_learners - 1)]

    def _bundle_of(self, peer: Peer) -> int:
        if peer.role == "evaluator":
            return 1
        return self._num_here + peer.index - 1 if peer.index else 0


def cpu_share(
    setting: float, cpus: Mapping[str, float], home: str, actors: int, others: int, *, may_grow: bool
) -> float:
    """CPUs of each role: the `setting` ray.actor_cpus, or if that is 0 the most, up to 1, with which all roles fit.

    `cpus` are those of each node. Some `others` must run on the node `home`, the `actors` may run on any. They need not fit
    yet if the cluster `may_grow`. Raises `ConfigError` if it has too few CPUs.
    """
    here, total = cpus.get(home, 0), sum(cpus.values())
    require(here >= LEAST, "ray.address", home, f"this machine's node has {here:g} CPUs; give it some")
    most = {node: min(actors + others, int(has / LEAST)) for node, has in cpus.items()}  # roles that a node can hold
    candidates = {_floor(min(1.0, has / count)) for node, has in cpus.items() for count in range(1, most[node] + 1)}
    fitting = [share for share in candidates if share and fits(share, cpus, home, actors, others)]
    allowed = f"{total:g} CPUs have room for {int(total / LEAST):,} roles; give fewer"
    require(bool(fitting), "actors.count", actors, allowed)
    share = setting or max(fitting)
    if not (may_grow or fits(share, cpus, home, actors, others)):
        needed = f"{actors + others} roles of {share:g} CPUs do not fit"
        raise ConfigError(f"ray.actor_cpus: {share:g}; {needed}, there are {total:g}; give less, or 0")
    return share


def fits(share: float, cpus: Mapping[str, float], home: str, actors: int, others: int) -> bool:
    """Whether each role can have `share` CPUs of one node; arguments as for `cpu_share`."""
    places = {node: int(has / share + 1e-9) for node, has in cpus.items()}
    return places.get(home, 0) >= others and sum(places.values()) >= actors + others


def num_gpus(settings: LearnerConfig, gpus: float, at_home: float) -> int:
    """GPUs of each learner, in a cluster with `gpus` in all and `at_home` on the first learner's node.

    Raises `ConfigError` if that node has some, but the cluster has fewer than learners.
    """
    if settings.device == "cpu" or not at_home:
        return 0  # a learner that needs one then says itself what is missing
    allowed = f"this cluster has {gpus:g} GPUs: give at most that, or learner.device cpu"
    require(settings.count <= gpus, "learner.count", settings.count, allowed)
    return 1


def _floor(share: float) -> float:
    return math.floor(share / LEAST + 1e-6) * LEAST
