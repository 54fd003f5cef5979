"""The package's algorithms: where the settings and the class of each are, so that naming one imports neither."""

from __future__ import annotations

import functools
import importlib
from typing import NamedTuple

from apex_acer.config.algorithm import AlgorithmConfig


class Place(NamedTuple):
    """Where an algorithm is."""

    settings: str
    """`module:class` of its settings, whose module imports no torch."""
    algorithm: str
    """`module:class` of its `Algorithm`."""


def _place(folder: str, settings: str, algorithm: str) -> Place:
    package = f"apex_acer.algorithms.{folder}"
    return Place(f"{package}.settings:{settings}", f"{package}.{algorithm}")


ALGORITHMS = {
    "acer": _place("acer", "AcerConfig", "acer:Acer"),
    "continuous_acer": _place("acer", "ContinuousAcerConfig", "continuous:ContinuousAcer"),
    "apex_dqn": _place("dqn", "ApexDqnConfig", "apex_dqn:ApexDqn"),
    "r2d2": _place("dqn", "R2d2Config", "r2d2:R2d2"),
    "ddpg": _place("ddpg", "DdpgConfig", "ddpg:Ddpg"),
    "sac": _place("sac", "SacConfig", "sac:Sac"),
    "actor_critic": _place("on_policy", "ActorCriticConfig", "actor_critic:ActorCritic"),
    "ppo": _place("on_policy", "PpoConfig", "ppo:Ppo"),
    "trpo": _place("on_policy", "TrpoConfig", "trpo:Trpo"),
}


@functools.cache
def settings_classes() -> dict[str, type[AlgorithmConfig]]:
    """The settings of the package's algorithms by name."""
    return {name: _find(place.settings) for name, place in ALGORITHMS.items()}


def default_settings() -> AlgorithmConfig:
    """ACER's settings, which a run has that names no algorithm."""
    return settings_classes()["acer"]()


def _find(name: str) -> type[AlgorithmConfig]:
    module, _, cls = name.partition(":")
    found: type[AlgorithmConfig] = getattr(importlib.import_module(module), cls)
    return found
