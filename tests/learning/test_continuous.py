"""Continuous actions whose best values are known beforehand are found, whatever the bounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from apex_acer import load_policy, train
from tests.continuous import continuous_run, each


@each("sac", "continuous_acer", "ppo")
def test_the_best_action_is_found(tmp_path: Path, algorithm: str) -> None:
    """Bounds [−1, 3] × [0, 10]; random play has a return of −0.83, the best −0."""
    settings = {"stop__env_steps": 3000, "evaluation__every": 1000, "evaluation__episodes": 20}
    result = train(continuous_run(tmp_path, algorithm, **settings))
    assert result.eval_return is not None
    assert -0.15 < result.eval_return < 0
    obs = np.random.default_rng(0).uniform(-1, 1, (200, 2)).astype(np.float32)
    best = np.array([1, 5]) + np.array([1, 2.5]) * obs
    error = np.abs(load_policy(result.weights).act(obs) - best).mean(0)
    assert (error < [0.4, 1.0]).all()  # a tenth of the range
