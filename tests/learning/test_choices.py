"""Several choices at once, whose best ones are seen: every algorithm for choices learns them, each by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from apex_acer import load_policy, train
from apex_acer.actor.rollout import evaluate
from apex_acer.config import EvaluationConfig, RunConfig
from apex_acer.config.runfile import load_run
from apex_acer.environments.vector import make_environments
from tests.conftest import config_error
from tests.runs import tiny_run

DIALS = "tests.environments_for_tests:Dials-v0"
MASKED = json.dumps({"nvec": [3, 2, 4], "masked": True})


ALGORITHMS: dict[str, dict[str, Any]] = {
    "acer": {"algorithm__replay_ratio": 4.0},
    "apex_dqn": {"algorithm__replay_ratio": 4.0, "algorithm__target_every": 50, "learner__batch_size": 32},
    "r2d2": {"algorithm__replay_ratio": 8.0, "algorithm__target_every": 50, "network__lstm": 32},
    "actor_critic": {"algorithm__normalise_advantages": True, "optimizer__learning_rate": 1e-2},
    "ppo": {"algorithm__epochs": 4, "algorithm__minibatches": 2},
    "trpo": {"algorithm__max_kl": 0.03, "algorithm__value_epochs": 2},
    "pqn": {"algorithm__epsilon_fraction": 0.5, "network__layer_norm": True},
}


QUICK: dict[str, Any] = {
    "actors__count": 1,
    "actors__environments": 8,
    "learner__batch_size": 8,
    "optimizer__name": "adam",
    "optimizer__learning_rate": 3e-3,
    "optimizer__eps": 1e-8,
    "network__hidden_sizes": (32,),
    "algorithm__gamma": 0.5,
    "evaluation__every": 2000,
    "evaluation__episodes": 50,
}
"""Settings of a run whose best actions are seen."""


def dials_run(out: Path, algorithm: str, **changes: Any) -> RunConfig:
    """A run of `algorithm` that sets dials."""
    settings = QUICK | {
        "algorithm__name": algorithm,
        "environment__id": DIALS,
        "replay__capacity": 10_000,
        "replay__start": 200,
        "stop__env_steps": 20_000,
        "stop__at_return": 3.0,
    }
    return tiny_run(out, **(settings | ALGORITHMS[algorithm] | changes))


CASES = [(name, seed) for name in ALGORITHMS for seed in (range(2) if name in ("acer", "ppo") else [0])]


SPACES: list[dict[str, Any]] = [  # with rows, counted from 5; MultiBinary; one dial
    {"nvec": [[3, 2], [4, 2]], "start": 5},
    {"nvec": [2, 2, 2], "binary": True},
    {"nvec": [3]},
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "space"), [*((name, {}) for name in ALGORITHMS), *(("ppo", space) for space in SPACES)], ids=str
)
def test_each_dial_is_set(tmp_path: Path, algorithm: str, space: dict[str, Any]) -> None:
    """By default of 3, 2 and 4 positions, with a return of 1.44 by random play; the environment raises beyond its space."""
    result = train(dials_run(tmp_path, algorithm, environment__kwargs=json.dumps(space)))
    assert result.reason == "at_return", result


@pytest.mark.parametrize(
    ("algorithm", "seed"),
    [pytest.param(*case, marks=[] if case == ("acer", 0) else pytest.mark.slow) for case in CASES],
)
def test_no_forbidden_position_is_ever_taken(
    tmp_path: Path, algorithm: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In training at any exploration, in sampled evaluations, and by a policy of a file."""
    monkeypatch.setenv("DIALS_RAISE", "1")  # about half of the positions are forbidden, and taking one is an error
    explores = algorithm not in ("apex_dqn", "r2d2", "pqn")
    sampled = {"evaluation__greedy": False, "actors__temperature_high": 3.0 if explores else 1.0}
    result = train(dials_run(tmp_path, algorithm, seed=seed, environment__kwargs=MASKED, **sampled))
    assert result.reason == "at_return", result
    assert load_run(tmp_path / "config.toml").environment.action_masks is None  # what was found is not a setting
    policy = load_policy(result.weights)
    environments = make_environments(policy.config.environment, 8, training=False, found=policy.spec)
    assert {episode.length for episode in evaluate(environments, policy, EvaluationConfig(episodes=20), 1)} == {4}
    environments.close()
    env = gymnasium.make(DIALS, **json.loads(MASKED))
    obs, info = env.reset(seed=0)
    for step in range(20):
        obs, _, _, truncated, info = env.step(policy.act(obs, greedy=step % 2 == 0, mask=info["action_mask"]))
        if truncated:
            obs, info = env.reset()
    with pytest.raises(ValueError, match="give mask=info"):
        policy.act(obs)


def test_an_algorithm_with_a_value_of_each_combination_takes_only_so_many(tmp_path: Path) -> None:
    many = json.dumps({"nvec": [17, 17, 17]})
    message = config_error(lambda: train(dials_run(tmp_path, "acer", environment__kwargs=many)))
    assert message.startswith("algorithm.name: 'acer' is not allowed; ")
    assert "17 x 17 x 17 = 4,913 combinations" in message
    assert message.endswith("4,096 at most; give actor_critic, cem, ppo, trpo")
    quick = {"evaluation__every": 0, "stop__at_return": None, "stop__env_steps": 100}
    assert train(dials_run(tmp_path, "ppo", environment__kwargs=many, **quick)).env_steps >= 100
