"""Whether algorithms and policies are for an environment. Without gymnasium, which loading a policy does not need."""

from __future__ import annotations

from apex_acer.config import AlgorithmConfig, ConfigError, require, settings_classes
from apex_acer.protocol.actions import Box, MultiDiscrete
from apex_acer.protocol.specification import EnvironmentSpec

MAX_VALUES = 4096
BINNED = (1,), (2,), (3,)  # the shapes of actions that `DiscreteActions` takes


def require_fit(algorithm: AlgorithmConfig, name: str, spec: EnvironmentSpec) -> None:
    """Raises `ConfigError` if `algorithm` is for another kind of actions than those of the environment `name`."""
    kind = spec.actions.kind
    fitting = ", ".join(sorted(key for key, settings in settings_classes().items() if settings.actions in ("", kind)))
    allowed = f"{name} has {kind} actions, for which there are {fitting}"
    if isinstance(spec.actions, Box) and spec.actions.given_shape in BINNED:
        allowed += "; or give --environment.wrappers apex_acer.wrappers:DiscreteActions"
    require(algorithm.actions in ("", kind), "algorithm.name", algorithm.name, allowed)
    if isinstance(spec.actions, MultiDiscrete):
        _require_few(algorithm, name, spec.actions)


def _require_few(algorithm: AlgorithmConfig, name: str, actions: MultiDiscrete) -> None:
    """An algorithm that is for discrete actions alone has a value of each of them."""
    fitting = ", ".join(sorted(key for key, settings in settings_classes().items() if not settings.actions))
    has = f"{name} has {actions.describe()} = {actions.n:,} combinations, and it has a value of each, {MAX_VALUES:,} at most"
    fits = algorithm.actions == "" or actions.n <= MAX_VALUES
    require(fits, "algorithm.name", algorithm.name, f"{has}; give {fitting}")


def require_unchanged(name: str, spec: EnvironmentSpec, trained: EnvironmentSpec) -> None:
    """Raises `ConfigError` if the environment `name` with `spec` does not suit a policy trained with `trained`."""
    if changes := spec.changes(trained):
        allowed = "give an environment like the one that the policy was trained in"
        raise ConfigError(f"environment.id: {name!r} has changed since the training: {changes}; {allowed}")
