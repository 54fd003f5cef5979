"""ACER and Ape-X DQN with distributed actors and one central learner.

Names are imported on first use (PEP 562), so that the command line's help loads no torch.
"""

from __future__ import annotations

import time

IMPORTED_AT = time.monotonic()  # start of `startup_s`; the clock is that of the whole machine
__version__ = "0.1.0"

TYPE_CHECKING = False  # that of `typing`, which takes time to import
if TYPE_CHECKING:
    from typing import Any

    from apex_acer.callbacks import Callbacks, Evaluation
    from apex_acer.config import ConfigError, RunConfig
    from apex_acer.console import live_view
    from apex_acer.manager import RunFailed, resume, train
    from apex_acer.policy import Policy, load_policy
    from apex_acer.result import TrainResult
    from apex_acer.runfile import load_run

_HOME = {
    "Callbacks": "apex_acer.callbacks",
    "ConfigError": "apex_acer.config",
    "Evaluation": "apex_acer.callbacks",
    "Policy": "apex_acer.policy",
    "RunConfig": "apex_acer.config",
    "RunFailed": "apex_acer.manager",
    "TrainResult": "apex_acer.result",
    "live_view": "apex_acer.console",
    "load_policy": "apex_acer.policy",
    "load_run": "apex_acer.runfile",
    "resume": "apex_acer.manager",
    "train": "apex_acer.manager",
}
__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'apex_acer' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """The public names alone, for tab completion; what this module and those within it import is of no use there."""
    return sorted(__all__)
