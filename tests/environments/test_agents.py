"""Games of several agents: their columns, masks and returns, and what a run makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Space, Tuple

from apex_acer import load_policy
from apex_acer.actor.evaluator import evaluate_policy
from apex_acer.actor.opponents import PolicyOpponent
from apex_acer.actor.play import record
from apex_acer.actor.policy import Policy
from apex_acer.actor.rollout import Rollout
from apex_acer.config import EnvironmentConfig
from apex_acer.environments.agents import AgentsVector
from apex_acer.environments.check import check_environment
from apex_acer.environments.turns import TurnsVector
from apex_acer.environments.vector import Environments, make_environments
from apex_acer.manager.manager import resume, train
from tests import on_policy
from tests.conftest import config_error
from tests.engines.test_serial import assert_equal_files
from tests.runs import tiny_run

PARTY = "tests.environments_for_tests:Party"
RETURNS = [3.0, 2.0, 9.0]  # of the three guests


def party(**kwargs: Any) -> EnvironmentConfig:
    return EnvironmentConfig(id=PARTY, kwargs=kwargs)


def party_run(out: Path, **changes: Any) -> Any:
    settings = {"environment__id": PARTY, "actors__environments": 6, "learner__batch_size": 12}
    return tiny_run(out, engine="serial", **(settings | changes))


def test_an_agent_s_steps_are_those_from_its_coming_to_its_going() -> None:
    """Two games: the guests play steps 0 to 3, 0 to 1 and 2 to 5; the game begins anew after step 5."""
    environments = make_environments(party(), 4, training=True)
    assert (environments.num, environments.spec.agents) == (6, 3)
    assert environments.reset(0).tolist() == [
        *([0, 0, 1], [1, 0, 1], [0, 0, 1]),  # who has not come sees what another sees
        *([0, 0, 11], [1, 0, 11], [0, 0, 11]),
    ]
    steps = [environments.step(np.zeros(6, np.int64)) for _ in range(7)]
    assert [step.reward.tolist() for step in steps] == [
        [1, 2, 0] * 2,
        [1, 0, 0] * 2,
        [1, 0, 3] * 2,
        [0, 0, 3] * 2,
        [0, 0, 3] * 2,
        [0, 0, 0] * 2,
        [1, 2, 0] * 2,
    ]
    ends = [np.flatnonzero(step.terminated[:3]).tolist() for step in steps]
    assert ends == [[1], [], [0], [], [2], [], [1]]
    waits = [np.flatnonzero(step.reset[:3]).tolist() for step in steps]
    assert waits == [[2], [1, 2], [1], [0, 1], [0, 1], [0, 1, 2], [2]]
    assert steps[1].obs[2].tolist() == [2, 2, 1], "the first observation of who comes late"
    assert steps[4].obs[2].tolist() == [2, 5, 1], "the last observation of who goes"
    assert steps[5].obs[:2].tolist() == [[0, 0, 2], [1, 0, 2]]


def test_a_game_that_lists_its_agents_for_ever_begins_anew_once_all_have_ended() -> None:
    environments = make_environments(party(plays=[[0, 3], [0, 1]], lists_all=True), 2, training=True)
    environments.reset(0)
    steps = [environments.step(np.zeros(2, np.int64)) for _ in range(5)]
    assert [step.reset.all() for step in steps] == [False, False, False, True, False]
    assert steps[3].obs.tolist() == [[0, 0, 2], [1, 0, 2]]


def test_an_episode_is_an_agent_s_and_each_step_is_learned_from_once(tmp_path: Path) -> None:
    config = party_run(tmp_path)
    environments = make_environments(config.environment, 6, training=True)
    rollout = Rollout(environments, Policy(config, environments.spec), seed=0, actor=0)
    unroll = rollout.unroll(60)  # ten games
    assert [unroll.reward[:, column].sum() for column in range(3)] == [10 * each for each in RETURNS]
    np.testing.assert_array_equal(unroll.mask, unroll.reward != 0)
    assert unroll.num_steps == 2 * 10 * (3 + 1 + 3)
    rollout.unroll(1)
    episodes = rollout.take_episodes()
    assert {(each.column % 3, each.episode_return, each.length) for each in episodes} == {
        (0, 3.0, 3),
        (1, 2.0, 1),
        (2, 9.0, 3),
    }
    assert len(episodes) == 2 * 3 * 10


ALGORITHMS: dict[str, dict[str, Any]] = {
    "acer": {"network__lstm": 8, "environment__stack": 2},
    "apex_dqn": {"algorithm__n_steps": 3, "replay__sampling": "prioritized"},
    "ppo": {"algorithm__epochs": 2, "algorithm__normalise_rewards": True, "network__normalise": True},
    "reinforce": {**on_policy.ALGORITHMS["reinforce"], "algorithm__unroll_length": 12},
    "pqn": {"algorithm__minibatches": 2},
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_run_learns_from_agents_and_is_resumed_to_the_bit(tmp_path: Path, algorithm: str) -> None:
    """They are told which action is forbidden, and the game fails at the first forbidden one."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    changes: dict[str, Any] = {
        "algorithm__name": algorithm,
        "environment__kwargs": {"masks": True},
        "checkpoint__replay": True,
    }
    changes |= {"checkpoint__every": 120, "evaluation__every": 120, "evaluation__episodes": 6, **ALGORITHMS[algorithm]}
    expected = train(party_run(whole, stop__env_steps=600, schedule_steps=600, **changes))
    train(party_run(parts, stop__env_steps=240, schedule_steps=600, **changes))
    result = resume(parts, {"env_steps": 600})
    assert result.updates == expected.updates > 0
    assert expected.skipped_updates == 0
    assert_equal_files("weights.safetensors", whole, parts)
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    scores = [row for row in rows if row["source"] == "evaluator"]
    assert scores
    assert {(row["eval_return"], row["team_return"]) for row in scores} == {(sum(RETURNS) / 3, sum(RETURNS))}
    policy = load_policy(result.weights, import_modules=True)
    assert evaluate_policy(policy, policy.config.evaluation, 1)["team_return"] == sum(RETURNS)


class Pair:
    """Two players who move together, or in turn, and note the actions that they get."""

    possible_agents = agents = ("first", "second")
    agent_selection = "first"
    rewards: ClassVar = dict.fromkeys(agents, 0.0)
    terminations: ClassVar = dict.fromkeys(agents, False)
    truncations: ClassVar = dict.fromkeys(agents, False)
    metadata: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        self.got: list[Any] = []

    def observation_space(self, agent: str) -> Space[Any]:
        return Box(-1.0, 1.0, (2,), np.float32)

    def action_space(self, agent: str) -> Space[Any]:
        return Dict({"go": Discrete(3, start=1), "far": Tuple([Box(0.0, 2.0, (1,), np.float32)])})

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return {agent: self.observe(agent) for agent in self.agents}, {}

    def observe(self, agent: str) -> Any:
        return np.zeros(2, np.float32)

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        self.got += [actions] if "go" in actions else actions.values()
        self.agent_selection = "second" if self.agent_selection == "first" else "first"
        return self.reset()[0], self.rewards, self.terminations, self.truncations, {}


@pytest.mark.parametrize("vector", [AgentsVector, TurnsVector])
def test_each_agent_gets_its_own_choices_and_numbers(vector: Any) -> None:
    """Also those of an opponent at random, and of one that is a policy."""
    games = vector("pair", Pair, 4)
    environments = Environments(games, EnvironmentConfig(), masks=False)
    environments.reset(0)
    if vector is TurnsVector:
        policy = Policy(tiny_run(algorithm__name="ppo"), environments.spec)
        environments.face(PolicyOpponent(policy))
        environments.reset(0)
    environments.step(np.array([[index % 3, index / 4] for index in range(4)]))
    assert len(games.games) == (2 if vector is AgentsVector else 4)
    for index, game in enumerate(games.games):
        got = game.env.got
        assert all(game.env.action_space("first").contains(action) for action in got)
        if vector is AgentsVector:
            expected = [((2 * index + agent) % 3 + 1, 1 + (2 * index + agent) / 4) for agent in range(2)]
            assert [(action["go"], action["far"][0].item()) for action in got] == expected
        else:  # the player's move is before or after one of the opponent, by lot
            assert (index % 3 + 1, 1 + index / 4) in [(action["go"], action["far"][0].item()) for action in got]


def test_a_video_shows_a_game_to_its_end(tmp_path: Path) -> None:
    config = party_run(tmp_path / "run", stop__env_steps=100)
    policy = load_policy(train(config).weights)
    path = tmp_path / "game.mp4"
    record(path, policy, config.evaluation, seed=0)
    assert path.stat().st_size > 0


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"actors__environments": 4}, "actors.environments: 4 is not allowed; a multiple of the 3 agents of a game"),
        (
            {"environment__kwargs": {"one_differs": True}},
            "environment.id: 'tests.environments_for_tests:Party': the observation space of guest_0 is "
            "Box(0.0, inf, (3,), float32), of guest_2 Box(0.0, inf, (4,), float32); "
            "agents share a policy: give all the same",
        ),
        (
            {"environment__id": "tests.environments_for_tests:countdown_observation"},
            "environment.id: 'tests.environments_for_tests:countdown_observation' could not be made; TypeError",
        ),
        (
            {"environment__id": "collections:Counter"},
            "environment.id: 'collections:Counter': it gave Counter; give a function of a PettingZoo ParallelEnv",
        ),
        (
            {"environment__kwargs": {"plays": [[1, 2], [1, 3]]}},
            f"environment.id: {PARTY!r} fails: reset raised ValueError: nobody plays after reset: agents is empty",
        ),
    ],
)
def test_what_is_no_game_of_equal_agents_is_refused(environment: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert config_error(lambda: check_environment(party_run(tmp_path, **environment))).startswith(message)
