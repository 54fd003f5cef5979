"""A run's configuration: frozen dataclasses, checked when they are made.

Each value is defined once, here; run files (`runfile.py`) and the command line use the same keys. Nothing here imports
torch, so that the manager can check a run before it starts any process.

May import: system.
"""

from apex_acer.config.algorithm import AlgorithmConfig, SegmentConfig, UnreadConfig
from apex_acer.config.algorithms import SETTINGS
from apex_acer.config.checks import ConfigError, reading, require, writing
from apex_acer.config.cluster import RayConfig
from apex_acer.config.environment import ActorsConfig, AtariConfig, EnvironmentConfig
from apex_acer.config.learning import LearnerConfig, NetworkConfig, OptimizerConfig, ReplayConfig
from apex_acer.config.off_policy import (
    AcerBaseConfig,
    AcerConfig,
    ApexDqnConfig,
    ContinuousAcerConfig,
    DdpgConfig,
    NStepConfig,
    R2d2Config,
    SacConfig,
)
from apex_acer.config.on_policy import ActorCriticConfig, OnPolicyConfig, PolicyGradientConfig, PpoConfig, TrpoConfig
from apex_acer.config.remote import ListenConfig, RemoteConfig
from apex_acer.config.run import CheckpointConfig, EvaluationConfig, LoggingConfig, LogLevel, RunConfig, StopConfig
from apex_acer.config.supervision import SupervisionConfig

__all__ = [
    "SETTINGS",
    "AcerBaseConfig",
    "AcerConfig",
    "ActorsConfig",
    "AlgorithmConfig",
    "ApexDqnConfig",
    "AtariConfig",
    "CheckpointConfig",
    "ConfigError",
    "ContinuousAcerConfig",
    "DdpgConfig",
    "EnvironmentConfig",
    "EvaluationConfig",
    "LearnerConfig",
    "ListenConfig",
    "LogLevel",
    "LoggingConfig",
    "NStepConfig",
    "NetworkConfig",
    "OptimizerConfig",
    "R2d2Config",
    "RayConfig",
    "RemoteConfig",
    "ReplayConfig",
    "RunConfig",
    "SacConfig",
    "StopConfig",
    "SupervisionConfig",
    "UnreadConfig",
    "ActorCriticConfig",
    "OnPolicyConfig",
    "PolicyGradientConfig",
    "PpoConfig",
    "TrpoConfig",
    "SegmentConfig",
    "reading",
    "require",
    "writing",
]
