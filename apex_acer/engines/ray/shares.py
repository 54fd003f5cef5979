"""The CPUs that Ray sets aside for each role."""

from __future__ import annotations

import math
from collections.abc import Mapping

from apex_acer.config import ConfigError, require

LEAST = 1e-4  # Ray's smallest share


def cpu_share(given: float, cpus: Mapping[str, float], home: str, actors: int, others: int) -> float:
    """CPUs of each role: `given`, or the most, up to 1, with which all roles fit.

    Args:
        given: `ray.actor_cpus`.
        cpus: of each node.
        home: the node on which all roles but the actors must run.
        actors: how many.
        others: how many.

    Raises:
        ConfigError: where the cluster has too few.
    """
    here = cpus.get(home, 0)
    require(here >= LEAST, "ray.address", home, f"this machine's node has {here:g} CPUs; give it some")
    most = {node: min(actors + others, int(has / LEAST)) for node, has in cpus.items()}  # with more, none has a share
    candidates = {_floor(min(1.0, has / count)) for node, has in cpus.items() for count in range(1, most[node] + 1)}
    fitting = [share for share in candidates if share and fits(share, cpus, home, actors, others)]
    room = f"{sum(cpus.values()):g} CPUs have room for {int(sum(cpus.values()) / LEAST):,} roles; give fewer"
    require(bool(fitting), "actors.count", actors, room)
    return given or max(fitting)


def fits(share: float, cpus: Mapping[str, float], home: str, actors: int, others: int) -> bool:
    """Whether every role has `share` CPUs of one node."""
    places = {node: int(has / share + 1e-9) for node, has in cpus.items()}
    return places.get(home, 0) >= others and sum(places.values()) >= actors + others


def require_fit(share: float, cpus: Mapping[str, float], home: str, actors: int, others: int) -> None:
    """Raises `ConfigError` where these nodes can never have all roles at once."""
    if not fits(share, cpus, home, actors, others):
        needed = f"{actors + others} roles of {share:g} CPUs do not fit"
        raise ConfigError(f"ray.actor_cpus: {share:g}; {needed}, there are {sum(cpus.values()):g}; give less, or 0")


def _floor(share: float) -> float:
    return math.floor(share / LEAST + 1e-6) * LEAST
