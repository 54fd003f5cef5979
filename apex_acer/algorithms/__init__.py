"""The interface of algorithms, and the package's own, named by import strings, so that naming one loads no torch.

May import: networks, functional, config, protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from apex_acer.config import imports, require

if TYPE_CHECKING:
    from apex_acer.algorithms.algorithm import Algorithm

ALGORITHMS = {
    "acer": "apex_acer.algorithms.acer:Acer",
    "continuous_acer": "apex_acer.algorithms.continuous_acer:ContinuousAcer",
    "apex_dqn": "apex_acer.algorithms.apex_dqn:ApexDqn",
    "r2d2": "apex_acer.algorithms.r2d2:R2d2",
    "ddpg": "apex_acer.algorithms.ddpg:Ddpg",
    "sac": "apex_acer.algorithms.sac:Sac",
    "actor_critic": "apex_acer.algorithms.actor_critic:ActorCritic",
    "ppo": "apex_acer.algorithms.ppo:Ppo",
    "trpo": "apex_acer.algorithms.trpo:Trpo",
}


def algorithm_class(name: str) -> type[Algorithm]:
    """The `Algorithm` named in `config.algorithm.name`; raises `ConfigError` if there is none."""
    cls = imports.load("algorithm.name", ALGORITHMS.get(name, name), "class")
    from apex_acer.algorithms.algorithm import Algorithm  # not above: it imports torch

    is_one = isinstance(cls, type) and issubclass(cls, Algorithm)
    require(is_one, "algorithm.name", name, f"give module:class of an {Algorithm.__module__}.Algorithm")
    return cls  # type: ignore[return-value]
