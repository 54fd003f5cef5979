"""Trains reinforcement-learning agents with distributed actors and one central learner.

Names are imported on first use (PEP 562), so that the command line's help loads no torch.
"""

from __future__ import annotations

import time

IMPORTED_AT = time.monotonic()  # the start of `startup_s`; all processes of the machine share this clock
__version__ = "0.1.0"

TYPE_CHECKING = False  # as in `typing`, which takes time to import
if TYPE_CHECKING:
    from typing import Any

    from apex_acer.actor.policy import Policy as Policy
    from apex_acer.actor.policy import load_policy as load_policy
    from apex_acer.config import ConfigError as ConfigError
    from apex_acer.config import RunConfig as RunConfig
    from apex_acer.config.runfile import load_run as load_run
    from apex_acer.manager.callbacks import Callbacks as Callbacks
    from apex_acer.manager.callbacks import Evaluation as Evaluation
    from apex_acer.manager.manager import RunFailed as RunFailed
    from apex_acer.manager.manager import resume as resume
    from apex_acer.manager.manager import train as train
    from apex_acer.manager.result import TrainResult as TrainResult
    from apex_acer.protocol.unroll import Unroll as Unroll
    from apex_acer.tools.unrolls import write_unrolls as write_unrolls
    from apex_acer.views.console import live_view as live_view

_HOME = {
    "Callbacks": "apex_acer.manager.callbacks",
    "ConfigError": "apex_acer.config",
    "Evaluation": "apex_acer.manager.callbacks",
    "Policy": "apex_acer.actor.policy",
    "RunConfig": "apex_acer.config",
    "RunFailed": "apex_acer.manager.manager",
    "TrainResult": "apex_acer.manager.result",
    "Unroll": "apex_acer.protocol.unroll",
    "live_view": "apex_acer.views.console",
    "load_policy": "apex_acer.actor.policy",
    "load_run": "apex_acer.config.runfile",
    "resume": "apex_acer.manager.manager",
    "train": "apex_acer.manager.manager",
    "write_unrolls": "apex_acer.tools.unrolls",
}
__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'apex_acer' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """The public names, for tab completion, without the modules and names that this file imports."""
    return sorted(__all__)
