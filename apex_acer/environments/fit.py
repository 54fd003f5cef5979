"""Whether an algorithm is for the actions of an environment. Without gymnasium, which loading a policy does not need."""

from __future__ import annotations

from apex_acer.config import SETTINGS, AlgorithmConfig, require
from apex_acer.protocol.actions import Box
from apex_acer.protocol.specification import EnvironmentSpec

BINNED = (1,), (2,), (3,)  # the shapes of actions that `DiscreteActions` takes


def require_fit(algorithm: AlgorithmConfig, name: str, spec: EnvironmentSpec) -> None:
    """Raises `ConfigError` if `algorithm` is for another kind of actions than those of the environment `name`."""
    kind = spec.actions.kind
    fitting = ", ".join(sorted(key for key, settings in SETTINGS.items() if settings.actions in ("", kind)))
    allowed = f"{name} has {kind} actions, for which there are {fitting}"
    if isinstance(spec.actions, Box) and spec.actions.given_shape in BINNED:
        allowed += "; or give --environment.wrappers apex_acer.wrappers:DiscreteActions"
    require(algorithm.actions in ("", kind), "algorithm.name", algorithm.name, allowed)
