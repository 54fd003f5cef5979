"""Opponents that are networks: what they see and remember, the pool of snapshots, and ratings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from apex_acer.actor.opponents import K, PolicyOpponent, SnapshotPool, expected_score
from apex_acer.actor.policy import Policy
from apex_acer.environments.vector import environment_spec
from apex_acer.networks.memory import State
from tests.environments.test_turns import game_run


def made_policy(seed: int = 0, **changes: Any) -> Policy:
    """A policy for tic-tac-toe with random weights that matter."""
    config = game_run(Path(), **changes)
    policy = Policy(config, environment_spec(config.environment))
    torch.manual_seed(seed)
    for parameter in policy.network.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    policy.version = 0
    return policy


def made_obs(rng: np.random.Generator) -> dict[str, Any]:
    return {"observation": rng.integers(0, 2, 18, np.int8), "action_mask": np.ones(9, np.int8)}


def alone(policy: Policy, seen: list[dict[str, Any]]) -> State:
    """The recurrent state after the observations of one game, as a player of it has it."""
    packed = [np.concatenate([obs["action_mask"], obs["observation"]]).view(np.uint8) for obs in seen]
    blank = np.zeros_like(packed[0])
    state = policy.initial_state(1)
    for step in range(len(packed)):
        planes = np.stack([packed[step - 1] if step else blank, packed[step]])[:, None]
        chosen = policy.step(
            planes,
            np.array([[step - 1], [step]], np.int32),
            state,
            greedy=False,
            exploration=policy.exploration(1),
            generator=torch.Generator(),
        )
        state = chosen.state
    return state


def test_each_game_has_its_own_frames_and_memory() -> None:
    policy = made_policy(network__lstm=8, environment__stack=2)
    opponent, rng = PolicyOpponent(policy), np.random.default_rng(0)
    opponent.reset(0, 3)
    seen: dict[int, list[dict[str, Any]]] = {0: [], 1: [], 2: []}
    for game in range(3):
        opponent.begin(game)
    for step, games in enumerate([[0, 1, 2], [1], [0, 2], [0, 1, 2], [2, 1]]):
        if step == 3:
            opponent.begin(1)
            seen[1] = []
        obs = [made_obs(rng) for _ in games]
        for game, each in zip(games, obs, strict=True):
            seen[game].append(each)
        actions = opponent.act(games, obs)
        assert len(actions) == len(games)
        for game in games:
            for name, value in alone(policy, seen[game]).items():
                torch.testing.assert_close(opponent._state[name][game], value[0])


def test_actions_are_sampled_from_the_policy_of_the_game() -> None:
    policy = made_policy()
    opponent, obs = PolicyOpponent(policy), made_obs(np.random.default_rng(1))
    num = 4000
    opponent.reset(0, num)
    for game in range(num):
        opponent.begin(game)
    counts = np.bincount(np.asarray(opponent.act(range(num), [obs] * num)), minlength=9)
    packed = np.concatenate([obs["action_mask"], obs["observation"]]).view(np.uint8)
    with torch.inference_mode():
        expected = policy.network(torch.from_numpy(packed[None])).pi_logits[0].softmax(-1)
    np.testing.assert_allclose(counts / num, expected, atol=0.03)
    opponent.reset(0, num)
    for game in range(num):
        opponent.begin(game)
    np.testing.assert_array_equal(np.bincount(np.asarray(opponent.act(range(num), [obs] * num)), minlength=9), counts)


def pool_of(newest: float = 0.5, **changes: Any) -> SnapshotPool:
    return SnapshotPool(
        made_policy(self_play__newest=newest, self_play__every=100, **({"self_play__pool": 3} | changes)), actor=0
    )


def drawn(pool: SnapshotPool, num: int = 600) -> list[int]:
    """Versions of the policies of `num` new games."""
    pool.reset(0, num)
    for game in range(num):
        pool.begin(game)
    return [policy.version for policy in pool._policies]


def add(pool: SnapshotPool, version: int, env_steps: int) -> None:
    """New weights, all equal to `version`, as an actor takes them."""
    tensors = {
        f"network.{name}": torch.full_like(value, version) for name, value in pool._policy.network.state_dict().items()
    }
    pool._policy.load(tensors, version)
    pool.add(tensors, version, env_steps)


def test_a_pool_keeps_the_newest_snapshots_one_an_interval() -> None:
    pool = pool_of(newest=0)
    for version, env_steps in enumerate([0, 50, 99, 120, 199, 430, 500, 610], start=1):
        add(pool, version, env_steps)
    assert set(drawn(pool)) == {6, 7, 8}
    counts = np.bincount(drawn(pool))[6:]
    assert counts.min() > 150, "each is as likely"
    for policy in pool._policies:
        for value in policy.network.parameters():
            assert (value == policy.version).all(), "newer weights do not change a snapshot"
    assert drawn(pool) == drawn(pool)


def test_games_are_against_the_newest_weights_as_often_as_asked() -> None:
    for newest, low, high in ((1.0, 1.0, 1.0), (0.25, 0.2, 0.3), (0.0, 0.0, 0.0)):
        pool = pool_of(newest)
        add(pool, 1, 0)
        add(pool, 2, 50)
        assert low <= np.mean(np.array(drawn(pool, 2000)) == 2) <= high
    without = pool_of(0.0, self_play__pool=0)
    add(without, 1, 0)
    assert set(drawn(without)) == {1}


def test_opponents_explore_as_their_actor_does() -> None:
    settings: dict[str, Any] = {
        "algorithm__name": "pqn",
        "algorithm__minibatches": 2,
        "algorithm__epsilon_fraction": 1.0,
    }
    pool = SnapshotPool(made_policy(**settings), actor=0)
    add(pool, 0, 100)
    obs = made_obs(np.random.default_rng(0))
    pool.reset(0, 2000)
    for game in range(2000):
        pool.begin(game)
    epsilon = float(pool._policy.exploration(1, 0, 100))
    assert epsilon > 0.5
    most = np.bincount(np.asarray(pool.act(range(2000), [obs] * 2000))).max() / 2000
    assert most == pytest.approx(1 - epsilon + epsilon / 9, abs=0.04)


def test_ratings_are_elo_s() -> None:
    pool = pool_of(newest=0)
    add(pool, 1, 0)
    drawn(pool, 1)
    rating = 0.0
    for episode_return, score in ((1.0, 1.0), (0.0, 0.5), (-2.0, 0.0), (0.25, 1.0)):
        pool.end(0, episode_return)
        rating += K * (score - 1 / (1 + 10 ** (-rating / 400)))
        assert pool.metrics() == {"rating": pytest.approx(rating)}
    for _ in range(3000):
        pool.end(0, 1.0)
    won = pool.rating
    assert won > 400
    add(pool, 2, 100)  # whose rating this is
    pool.end(drawn(pool).index(2), 0.0)
    assert pool.rating == pytest.approx(won), "equal players draw"
    assert expected_score(400.0, 0.0) == pytest.approx(10 / 11)


def test_games_against_the_newest_weights_or_a_snapshot_that_left_are_not_rated() -> None:
    pool = pool_of(newest=1, self_play__pool=1)
    add(pool, 1, 0)
    drawn(pool, 1)
    pool.end(0, 1.0)
    assert pool.rating == 0
    pool = pool_of(newest=0, self_play__pool=1)
    add(pool, 1, 0)
    drawn(pool, 1)
    add(pool, 2, 100)
    pool.end(0, 1.0)
    assert pool.rating == 0
