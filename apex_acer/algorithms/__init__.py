"""The interface of algorithms, and a folder for each family of them.

May import: networks, functional, config, protocol, system.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from apex_acer.config import ALGORITHMS, require
from apex_acer.system import imports

if TYPE_CHECKING:
    from apex_acer.algorithms.algorithm import Agent, Algorithm
    from apex_acer.config import RunConfig
    from apex_acer.protocol.specification import EnvironmentSpec


def algorithm_class(name: str) -> type[Algorithm]:
    """The `Algorithm` that `algorithm.name` names; raises `ConfigError` if there is none."""
    cls = imports.load("algorithm.name", ALGORITHMS.get(name, name), "class")
    from apex_acer.algorithms.algorithm import Algorithm  # not above: it imports torch

    is_algorithm = isinstance(cls, type) and issubclass(cls, Algorithm)
    require(is_algorithm, "algorithm.name", name, f"give module:class of an {Algorithm.__module__}.Algorithm")
    return cls  # type: ignore[return-value]


def make_agent(config: RunConfig, spec: EnvironmentSpec) -> Agent:
    """The agent of a run in an environment of `spec`; torch's random generator, which the learner uses, does not advance."""
    cls = algorithm_class(config.algorithm.name)
    import torch

    with torch.random.fork_rng(devices=()):
        return cls.agent_class(config, spec)
