"""Environments: their check before a run, their spaces, vectors, wrappers and videos.

May import: config, protocol, system.
"""

from __future__ import annotations

from apex_acer.config import ConfigError


def late(name: str, deadline_s: float) -> ConfigError:
    """The error of an environment that did not answer within `deadline_s`."""
    return ConfigError(f"environment.id: {name!r} did not answer within {deadline_s:g} s; give one that answers")
