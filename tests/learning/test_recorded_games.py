"""MountainCar, whose top random play hardly ever reaches: solved from recorded games of a rule, and not without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from apex_acer import RunConfig, TrainResult, Unroll, load_run, train, write_unrolls

GAMES = 150


def config() -> RunConfig:
    changes: dict[str, Any] = {"environment": {"id": "MountainCar-v0"}, "engine": "serial", "learner": {"threads": 1}}
    stop = {"env_steps": 16_000, "at_return": -130.0}
    evaluation = {"every": 2000}
    return load_run("cartpole-apex-dqn", replay={"capacity": 100_000}, evaluation=evaluation, stop=stop, **changes)


def recorded_game(seed: int, k: int) -> list[Unroll]:
    """Of a rule that pushes the car in the direction in which it rolls, and sometimes in any."""
    env, random = gymnasium.make("MountainCar-v0"), np.random.default_rng(seed)
    share, ended, unrolls = random.uniform(0, 0.5), False, []
    obs, _ = env.reset(seed=seed)
    while not ended:
        planes, episode_step = np.zeros((k + 1, 1, 2), np.float32), np.zeros((k + 1, 1), np.int32)
        action, reward = np.zeros((k, 1), np.int64), np.zeros((k, 1), np.float32)
        terminated, truncated, mask = np.zeros((3, k, 1), bool)
        planes[0], episode_step[0] = obs, k * len(unrolls)
        for t in range(k):
            action[t] = random.integers(3) if random.random() < share else 2 * (obs[1] > 0)
            obs, reward[t], terminated[t], truncated[t], _ = env.step(int(action[t, 0]))
            planes[t + 1], episode_step[t + 1], mask[t] = obs, episode_step[t] + 1, True
            if ended := bool(terminated[t, 0] or truncated[t, 0]):
                break
        priority = {"priority": mask.astype(np.float32)}
        unrolls.append(Unroll(planes, episode_step, action, reward, terminated, truncated, mask, priority, {}))
    return unrolls


def trained(tmp_path: Path, seed: int, **changes: Any) -> TrainResult:
    return train(config(), out=str(tmp_path / "run"), seed=seed, **changes)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_recorded_games_show_what_random_play_does_not_find(tmp_path: Path) -> None:
    k = config().algorithm.unroll_length
    write_unrolls(tmp_path / "games", config(), [unroll for game in range(GAMES) for unroll in recorded_game(game, k)])
    result = trained(tmp_path, 1, replay={"load": str(tmp_path / "games")})
    assert result.reason == "at_return"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_without_them_the_top_is_not_reached(tmp_path: Path) -> None:
    assert trained(tmp_path, 1).reason == "env_steps"
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert {row["eval_return"] for row in rows if "eval_return" in row} == {-200.0}
