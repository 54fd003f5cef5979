"""The algorithms that learn from fresh data only, for tests of any kind of actions; a new one is a line here."""

from __future__ import annotations

from typing import Any

CALM = {"optimizer__max_grad_norm": 0.5, "optimizer__schedule": "linear"}
"""A Gaussian policy that has become narrow has large gradients."""
ALGORITHMS: dict[str, dict[str, Any]] = {
    "a2c": {"algorithm__name": "actor_critic", **CALM},
    "a3c": {"algorithm__name": "actor_critic", "algorithm__pipelined": True, **CALM},
    "impala": {
        "algorithm__name": "actor_critic",
        "algorithm__pipelined": True,
        "algorithm__targets": "vtrace",
        **CALM,
    },
    "reinforce": {
        "algorithm__name": "actor_critic",
        "algorithm__whole_episodes": True,
        "algorithm__normalise_advantages": True,
    },
    "ppo": {
        "algorithm__name": "ppo",
        "algorithm__epochs": 5,
        "algorithm__minibatches": 2,
        "learner__batch_size": 8,
    },
    "ppo_lstm": {
        "algorithm__name": "ppo",
        "algorithm__epochs": 5,
        "algorithm__minibatches": 2,
        "learner__batch_size": 8,
        "network__lstm": 16,
    },
    "trpo": {
        "algorithm__name": "trpo",
        "algorithm__max_kl": 0.05,
        "algorithm__value_epochs": 4,
        "algorithm__value_minibatches": 1,
        "learner__batch_size": 16,
    },
}
"""The settings of each, of which those of a tiny run lack nothing."""
