"""The algorithms' settings by name: `algorithm.name` decides which class the section `[algorithm]` is."""

from __future__ import annotations

from apex_acer.config.algorithm import AlgorithmConfig
from apex_acer.config.checks import importable, require
from apex_acer.config.off_policy import (
    AcerConfig,
    ApexDqnConfig,
    ContinuousAcerConfig,
    DdpgConfig,
    R2d2Config,
    SacConfig,
)
from apex_acer.config.on_policy import ActorCriticConfig, PpoConfig, TrpoConfig

SETTINGS: dict[str, type[AlgorithmConfig]] = {
    "acer": AcerConfig,
    "continuous_acer": ContinuousAcerConfig,
    "apex_dqn": ApexDqnConfig,
    "r2d2": R2d2Config,
    "ddpg": DdpgConfig,
    "sac": SacConfig,
    "actor_critic": ActorCriticConfig,
    "ppo": PpoConfig,
    "trpo": TrpoConfig,
}
"""The settings of this package's algorithms by name; they are here so that no torch is imported to find them."""


def require_settings(given: AlgorithmConfig) -> None:
    """Raises `ConfigError` unless `given` are settings of the algorithm that they name."""
    importable("algorithm.name", given.name, "module:class", *SETTINGS)
    kind = SETTINGS.get(given.name, type(given))
    require(type(given) is kind, "algorithm.name", given.name, f"its settings are {kind.__name__}")
