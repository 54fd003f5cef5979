"""Where the roles of a run work: an engine starts them and connects the manager to the learner's inbox.

May import: actor, learner, storage, config, protocol, system.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from apex_acer.engines.engine import Engine

ENGINES = {
    "local": "apex_acer.engines.local.processes:LocalEngine",
    "ray": "apex_acer.engines.ray.engine:RayEngine",
    "serial": "apex_acer.engines.serial:SerialEngine",
}


def engine_class(name: str) -> type[Engine]:
    """The `Engine` class that `config.engine` names."""
    module, _, attribute = ENGINES[name].partition(":")
    cls: type[Engine] = getattr(importlib.import_module(module), attribute)
    return cls
