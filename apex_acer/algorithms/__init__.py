"""The contract of algorithms and each of them. They are named by import strings, so that naming one loads no torch.

May import: networks, functional, config, protocol.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from apex_acer.algorithms.algorithm import Algorithm

ALGORITHMS = {"acer": "apex_acer.algorithms.acer:Acer", "apex_dqn": "apex_acer.algorithms.apex_dqn:ApexDqn"}


def algorithm_class(name: str) -> type[Algorithm]:
    """The `Algorithm` named in `config.algorithm.name`."""
    module, _, attribute = ALGORITHMS[name].partition(":")
    cls: type[Algorithm] = getattr(importlib.import_module(module), attribute)
    return cls
