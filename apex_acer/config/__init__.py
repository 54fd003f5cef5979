"""A run's configuration: frozen dataclasses, checked when they are made.

Each value is defined once, here; run files (`runfile.py`) and the command line use the same keys. Nothing here imports
torch, so that the manager can check a run before it starts any process.

May import: system.
"""

from apex_acer.config.algorithm import ALGORITHMS as ALGORITHMS
from apex_acer.config.algorithm import AlgorithmConfig as AlgorithmConfig
from apex_acer.config.algorithm import ContinuousConfig as ContinuousConfig
from apex_acer.config.algorithm import NStepConfig as NStepConfig
from apex_acer.config.algorithm import Sampling as Sampling
from apex_acer.config.algorithm import SequenceConfig as SequenceConfig
from apex_acer.config.algorithm import UnreadConfig as UnreadConfig
from apex_acer.config.algorithm import algorithm_settings as algorithm_settings
from apex_acer.config.algorithm import settings_classes as settings_classes
from apex_acer.config.checks import at_least as at_least
from apex_acer.config.checks import between as between
from apex_acer.config.checks import fraction as fraction
from apex_acer.config.checks import positive as positive
from apex_acer.config.environment import ActorsConfig as ActorsConfig
from apex_acer.config.environment import AtariConfig as AtariConfig
from apex_acer.config.environment import EnvironmentConfig as EnvironmentConfig
from apex_acer.config.environment import SelfPlayConfig as SelfPlayConfig
from apex_acer.config.learning import LearnerConfig as LearnerConfig
from apex_acer.config.learning import NetworkConfig as NetworkConfig
from apex_acer.config.learning import OptimizerConfig as OptimizerConfig
from apex_acer.config.learning import ReplayConfig as ReplayConfig
from apex_acer.config.operation import CheckpointConfig as CheckpointConfig
from apex_acer.config.operation import EvaluationConfig as EvaluationConfig
from apex_acer.config.operation import LoggingConfig as LoggingConfig
from apex_acer.config.operation import LogLevel as LogLevel
from apex_acer.config.operation import RayConfig as RayConfig
from apex_acer.config.operation import StopConfig as StopConfig
from apex_acer.config.operation import SupervisionConfig as SupervisionConfig
from apex_acer.config.remote import ListenConfig as ListenConfig
from apex_acer.config.remote import RemoteConfig as RemoteConfig
from apex_acer.config.run import RunConfig as RunConfig
from apex_acer.system.errors import ConfigError as ConfigError
from apex_acer.system.errors import reading as reading
from apex_acer.system.errors import require as require
from apex_acer.system.errors import writing as writing
