"""A run's configuration: frozen dataclasses, checked when they are made.

Each value is defined here once. The same keys are read from run files (`runfile.py`) and from the command line. Nothing
here imports torch, so that a manager can check a run before any heavy process starts.

May import: system.
"""

from apex_acer.config.algorithm import SETTINGS, AcerConfig, AlgorithmConfig, ApexDqnConfig, UnreadConfig
from apex_acer.config.checks import ConfigError, reading, require, writing
from apex_acer.config.cluster import RayConfig
from apex_acer.config.environment import ActorsConfig, AtariConfig, EnvironmentConfig
from apex_acer.config.learning import LearnerConfig, NetworkConfig, OptimizerConfig, ReplayConfig
from apex_acer.config.run import CheckpointConfig, EvaluationConfig, LoggingConfig, LogLevel, RunConfig, StopConfig
from apex_acer.config.supervision import SupervisionConfig

__all__ = [
    "SETTINGS",
    "AcerConfig",
    "ActorsConfig",
    "AlgorithmConfig",
    "ApexDqnConfig",
    "AtariConfig",
    "CheckpointConfig",
    "ConfigError",
    "EnvironmentConfig",
    "EvaluationConfig",
    "LearnerConfig",
    "LogLevel",
    "LoggingConfig",
    "NetworkConfig",
    "OptimizerConfig",
    "RayConfig",
    "ReplayConfig",
    "RunConfig",
    "StopConfig",
    "SupervisionConfig",
    "UnreadConfig",
    "reading",
    "require",
    "writing",
]
