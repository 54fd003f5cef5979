"""The settings of the ray engine."""

from __future__ import annotations

import re
from dataclasses import dataclass

from apex_acer.config.checks import at_least, require, typed


@dataclass(frozen=True)
class RayConfig:
    """Where the ray engine runs its roles, and how they share the machines."""

    address: str = ""
    """Cluster to join: `auto` (the one that this machine belongs to) or `host:port`; empty: a new one on this machine."""
    actor_cpus: float = 0.0
    """CPUs that Ray reserves for each actor; 0: an equal share of those available, at most 1."""
    compress: bool = False
    """Send observations compressed by LZ4, for a slow network between the machines."""

    def __post_init__(self) -> None:
        typed("ray", self)
        known = self.address in ("", "auto") or re.fullmatch(r"[\w.-]+:\d+", self.address) is not None
        require(known, "ray.address", self.address, "give auto, host:port or nothing")
        at_least(0, "ray", {"actor_cpus": self.actor_cpus})
