"""The CPUs and GPUs that Ray reserves for each role."""

from __future__ import annotations

import math
from collections.abc import Mapping

from apex_acer.config import ConfigError, LearnerConfig, require

LEAST = 1e-4  # the smallest part of a CPU that Ray reserves


def cpu_share(given: float, cpus: Mapping[str, float], home: str, actors: int, others: int, *, may_grow: bool) -> float:
    """CPUs of each role: `given`, or if that is 0 the most, up to 1, with which all roles fit.

    Args:
        given: `ray.actor_cpus`.
        cpus: CPUs of each node.
        home: the node of the `others`.
        actors: number of roles that may run on any node.
        others: number of roles that must run on `home`.
        may_grow: whether the roles need not fit yet, because nodes may join.

    Raises:
        ConfigError: if the cluster has too few.
    """
    here = cpus.get(home, 0)
    require(here >= LEAST, "ray.address", home, f"this machine's node has {here:g} CPUs; give it some")
    most = {node: min(actors + others, int(has / LEAST)) for node, has in cpus.items()}  # roles that a node can hold
    candidates = {_floor(min(1.0, has / count)) for node, has in cpus.items() for count in range(1, most[node] + 1)}
    fitting = [share for share in candidates if share and fits(share, cpus, home, actors, others)]
    room = f"{sum(cpus.values()):g} CPUs have room for {int(sum(cpus.values()) / LEAST):,} roles; give fewer"
    require(bool(fitting), "actors.count", actors, room)
    share = given or max(fitting)
    if not (may_grow or fits(share, cpus, home, actors, others)):
        needed = f"{actors + others} roles of {share:g} CPUs do not fit"
        raise ConfigError(f"ray.actor_cpus: {share:g}; {needed}, there are {sum(cpus.values()):g}; give less, or 0")
    return share


def fits(share: float, cpus: Mapping[str, float], home: str, actors: int, others: int) -> bool:
    """Whether each role can have `share` CPUs of one node; arguments as for `cpu_share`."""
    places = {node: int(has / share + 1e-9) for node, has in cpus.items()}
    return places.get(home, 0) >= others and sum(places.values()) >= actors + others


def num_gpus(settings: LearnerConfig, gpus: float, at_home: float) -> int:
    """GPUs of each learner, in a cluster with `gpus` in all and `at_home` on the first learner's node.

    Raises `ConfigError` if that node has some, but the cluster has not one for each learner.
    """
    if settings.device == "cpu" or not at_home:
        return 0  # a learner that needs one then says itself what is missing
    enough = f"this cluster has {gpus:g} GPUs: give at most that, or learner.device cpu"
    require(settings.count <= gpus, "learner.count", settings.count, enough)
    return 1


def _floor(share: float) -> float:
    return math.floor(share / LEAST + 1e-6) * LEAST
