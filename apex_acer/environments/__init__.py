"""Vector environments: how their spaces are understood, wrappers for them, and pictures of them.

May import: config, protocol, system.
"""

from __future__ import annotations

from apex_acer.config import ConfigError


def late(name: str, deadline_s: float) -> ConfigError:
    """The error of an environment that hangs."""
    return ConfigError(f"environment.id: {name!r} did not answer within {deadline_s:g} s; give one that answers")
