"""A run's configuration: frozen dataclasses, checked when they are made.

Each value is defined once, here; run files (`runfile.py`) and the command line use the same keys. Nothing here imports
torch, so that the manager can check a run before it starts any process.

May import: system.
"""

from apex_acer.config.algorithm import AlgorithmConfig, NStepConfig, SegmentConfig, UnreadConfig
from apex_acer.config.algorithms import ALGORITHMS, settings_classes
from apex_acer.config.checks import ConfigError, reading, require, writing
from apex_acer.config.cluster import RayConfig
from apex_acer.config.environment import ActorsConfig, AtariConfig, EnvironmentConfig
from apex_acer.config.learning import LearnerConfig, NetworkConfig, OptimizerConfig, ReplayConfig
from apex_acer.config.remote import ListenConfig, RemoteConfig
from apex_acer.config.run import CheckpointConfig, EvaluationConfig, LoggingConfig, LogLevel, RunConfig, StopConfig
from apex_acer.config.supervision import SupervisionConfig

__all__ = [
    "ALGORITHMS",
    "ActorsConfig",
    "AlgorithmConfig",
    "AtariConfig",
    "CheckpointConfig",
    "ConfigError",
    "EnvironmentConfig",
    "EvaluationConfig",
    "LearnerConfig",
    "ListenConfig",
    "LogLevel",
    "LoggingConfig",
    "NStepConfig",
    "NetworkConfig",
    "OptimizerConfig",
    "RayConfig",
    "RemoteConfig",
    "ReplayConfig",
    "RunConfig",
    "StopConfig",
    "SupervisionConfig",
    "UnreadConfig",
    "SegmentConfig",
    "reading",
    "require",
    "settings_classes",
    "writing",
]
