"""Games of two players who take turns: the player's steps, the opponent's replies, and what a run makes of them."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apex_acer import load_policy
from apex_acer.actor.evaluator import evaluate_policy
from apex_acer.actor.play import record
from apex_acer.actor.policy import Policy
from apex_acer.actor.rollout import Rollout
from apex_acer.cli import main
from apex_acer.config import EnvironmentConfig
from apex_acer.environments.check import check_environment
from apex_acer.environments.turns import Move, MoveOpponent, Opponent, player_metrics
from apex_acer.environments.vector import Environments, make_environments
from apex_acer.manager.manager import resume, train
from apex_acer.protocol.specification import Array
from docs.examples.small_pong import follow
from tests import on_policy
from tests.conftest import config_error
from tests.engines.test_serial import assert_equal_files
from tests.environments_for_tests import add_one
from tests.runs import CARTPOLE, tiny_run

RACE = "tests.environments_for_tests:Race"
SMALL_PONG = "docs.examples.small_pong:SmallPong"
TIC_TAC_TOE = "docs.examples.tic_tac_toe:TicTacToe"
ONE, TWO = (f"tests.environments_for_tests:add_{number}" for number in ("one", "two"))


def race(num: int = 8, **kwargs: Any) -> Environments:
    return make_environments(EnvironmentConfig(id=RACE, kwargs=kwargs), num, training=True)


def game_run(out: Path, **changes: Any) -> Any:
    return tiny_run(out, engine="serial", **({"environment__id": TIC_TAC_TOE} | changes))


class Recorder(Opponent):
    """Adds 1, and notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def reset(self, seed: int | None, num: int) -> None:
        self.told.append(("reset", seed, num))

    def begin(self, game: int) -> None:
        self.told.append(("begin", game))

    def act(self, games: Sequence[int], obs: Sequence[Any]) -> Sequence[Any]:
        self.told += [("act", game, *each.astype(int)[:2].tolist()) for game, each in zip(games, obs, strict=True)]
        return [0] * len(games)

    def end(self, game: int, episode_return: float) -> None:
        self.told.append(("end", game, episode_return))


def test_two_who_move_at_once_have_the_same_chances() -> None:
    """Who follows the ball wins against random moves, and half the rallies against its like."""

    def returns(player: Move) -> Array:
        environments = make_environments(EnvironmentConfig(id=SMALL_PONG), 40, training=False)
        environments.face(MoveOpponent(follow))
        obs, random = environments.reset(0), np.random.default_rng(0)
        assert {*obs[:, 4]} == {-1, 1}, "who is served to and who is the player are two lots"
        total, over = np.zeros(40), np.zeros(40, bool)
        while not over.all():
            step = environments.step(np.array([player(each, random) for each in obs]))
            total += np.where(over, 0, step.reward)
            obs, over = step.obs, over | step.terminated | step.truncated
        return total

    assert abs(returns(follow).mean()) < 0.3
    assert returns(lambda _, random: int(random.integers(3))).mean() < -0.6


def test_a_step_is_a_move_and_its_reply_and_the_seed_says_who_begins() -> None:
    environments = race()
    environments.face(MoveOpponent(add_one))
    first = environments.reset(0)
    begins = first[:, 0] == 0
    assert 0 < begins.sum() < 8
    np.testing.assert_array_equal(first[:, 1], ~begins, err_msg="the other player has moved")
    assert first[:, 2].tolist() == [10 * seed + 1 for seed in range(8)]
    steps = [environments.step(np.zeros(8, np.int64)) for _ in range(3)]
    np.testing.assert_array_equal(steps[0].obs[:, 1], np.where(begins, 2, 3))
    assert not any(array.any() for array in steps[0][1:])
    np.testing.assert_array_equal(steps[1].reward, np.where(begins, -1, 1), err_msg="a reply that wins is a loss")
    np.testing.assert_array_equal(steps[1].obs[:, :2].T, [first[:, 0], np.full(8, 4)])
    assert steps[1].terminated.all()
    assert not steps[1].truncated.any()
    assert steps[2].reset.all()
    assert not steps[2].reward.any()
    np.testing.assert_array_equal(
        steps[2].obs[:, 1], steps[2].obs[:, 0], err_msg="it moves before the first observation"
    )
    assert (steps[2].obs[:, 0] != first[:, 0]).any(), "who begins is drawn for each game"
    np.testing.assert_array_equal(environments.reset(0), first)
    assert (environments.reset(1)[:, 0] != first[:, 0]).any()


def test_a_time_limit_is_no_end() -> None:
    environments = race(limit=3)
    environments.face(MoveOpponent(add_one))
    environments.reset(0)
    steps = [environments.step(np.zeros(8, np.int64)) for _ in range(2)]
    ended = steps[0].truncated | steps[1].truncated
    assert ended.all()
    assert not any(step.terminated.any() or step.reward.any() for step in steps)


def test_a_game_that_the_opponent_ends_at_once_begins_again_and_its_early_rewards_are_kept() -> None:
    environments = race(target=1)
    environments.face(MoveOpponent(add_one))
    for obs in (environments.reset(0), *(environments.step(np.zeros(8, np.int64)).obs for _ in range(4))):
        assert not obs[:, 1].any() or obs[:, 1].all(), "before the first move, or after the last"
    environments = race(target=99, pays_first=0.5)
    environments.face(MoveOpponent(add_one))
    begins = environments.reset(0)[:, 0] == 0
    step = environments.step(np.zeros(8, np.int64))
    np.testing.assert_array_equal(step.reward, np.where(begins, 0.5, -0.5))


def test_an_opponent_sees_the_other_side_and_is_told_of_each_game() -> None:
    environments, recorder = race(2), Recorder()
    environments.face(recorder)
    begins = environments.reset(0)[:, 0] == 0
    for _ in range(3):
        environments.step(np.zeros(2, np.int64))
    for game in range(2):
        told = [each[2:] if each[0] == "act" else each[0:1] + each[2:] for each in recorder.told if each[1] == game]
        side, totals = (1, (1, 3)) if begins[game] else (0, (0, 2))
        expected = [
            ("begin",),
            *((side, total) for total in totals),
            ("end", -1.0 if begins[game] else 1.0),
            ("begin",),
        ]
        assert told[:5] == expected
    assert [each[2] for each in recorder.told if each[0] == "reset"] == [2]


def test_moves_at_random_are_legal_and_of_the_seed() -> None:
    environments = make_environments(EnvironmentConfig(id=TIC_TAC_TOE), 4, training=True)
    games = []
    for seed in (0, 0, 1):
        seen, rng = [environments.reset(seed)], np.random.default_rng(0)
        for _ in range(40):
            legal = seen[-1][:, :9] != 0  # parts are in the order of their names
            seen.append(environments.step((legal + rng.random(legal.shape)).argmax(-1)).obs)
            assert not (seen[-1][:, 9:18] & seen[-1][:, 18:]).any(), "a square with both marks"
        games.append(np.stack(seen))
    np.testing.assert_array_equal(games[0], games[1])
    assert (games[0] != games[2]).any()


def test_only_the_player_s_steps_are_in_an_unroll(tmp_path: Path) -> None:
    config = game_run(tmp_path, environment__id=RACE)
    environments = make_environments(config.environment, 4, training=True)
    environments.face(MoveOpponent(add_one))
    rollout = Rollout(environments, Policy(config, environments.spec), seed=0, actor=0)
    unroll = rollout.unroll(60)
    over = unroll.terminated | unroll.truncated
    np.testing.assert_array_equal(unroll.mask[1:], ~over[:-1])
    assert not unroll.reward[~unroll.mask].any()
    np.testing.assert_array_equal(unroll.reward != 0, over & unroll.mask)
    episodes = rollout.take_episodes()
    assert {each.episode_return for each in episodes} == {-1.0, 1.0}
    assert sum(each.length for each in episodes) <= unroll.num_steps


ALGORITHMS: dict[str, dict[str, Any]] = {
    "acer": {"network__lstm": 8, "environment__stack": 2},
    "apex_dqn": {"algorithm__n_steps": 3, "replay__sampling": "prioritized"},
    "ppo": {"algorithm__epochs": 2},
    "reinforce": {**on_policy.ALGORITHMS["reinforce"], "algorithm__unroll_length": 6},
    "pqn": {"algorithm__minibatches": 2},
    "cem": {"algorithm__unroll_length": 6},
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_run_plays_itself_and_is_resumed_to_the_bit(tmp_path: Path, algorithm: str) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    changes: dict[str, Any] = {"algorithm__name": algorithm, "checkpoint__replay": True, "checkpoint__every": 120}
    changes |= {"self_play__every": 30, "self_play__pool": 3, "logging__every_seconds": 0.001}
    changes |= {"evaluation__every": 120, "evaluation__episodes": 6, **ALGORITHMS[algorithm]}
    expected = train(game_run(whole, stop__env_steps=600, schedule_steps=600, **changes))
    train(game_run(parts, stop__env_steps=240, schedule_steps=600, **changes))
    result = resume(parts, {"env_steps": 600})
    assert result.updates == expected.updates > 0
    assert_equal_files("weights.safetensors", whole, parts)
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    for source in ("evaluator", "actor_0"):
        played = [row for row in rows if row["source"] == source and "win_share" in row]
        assert played
        for row in played:
            assert row["win_share"] + row["draw_share"] + row["loss_share"] == pytest.approx(1)
    assert any(row.get("rating") for row in rows if row["source"].startswith("actor"))


def test_evaluations_are_against_a_function_or_weights_and_give_the_shares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who begins a race to 3 with a step of 2 loses it to a step of 1 or more."""
    changes = {"environment__kwargs": {"target": 3}, "evaluation__opponent": TWO, "evaluation__every": 100}
    result = train(game_run(tmp_path / "run", environment__id=RACE, stop__env_steps=200, **changes))
    policy = load_policy(result.weights, import_modules=True)
    settings = policy.config.evaluation
    assert settings.opponent == TWO
    row = evaluate_policy(policy, settings, 1)
    assert row["win_share"] - row["loss_share"] == pytest.approx(row["eval_return"])
    assert row["draw_share"] == 0
    for opponent in ("random", ONE, result.weights):
        arguments = [
            "evaluate",
            result.weights,
            "--import-modules",
            "--json",
            "--opponent",
            opponent,
            "--episodes",
            "20",
        ]
        assert main(arguments) == 0
        said = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert said["opponent"] == opponent
        assert said["win_share"] + said["loss_share"] == 1
    assert main(["evaluate", result.weights, "--import-modules"]) == 0
    assert f"against {TWO}: won " in capsys.readouterr().out
    path = tmp_path / "game.mp4"
    record(path, policy, settings, seed=0)
    assert path.stat().st_size > 0


def test_metrics_of_players_are_a_team_s_return_or_shares_of_wins_draws_and_losses() -> None:
    returns = np.array([2.0, 0.5, 0.0, -1.5])
    assert player_metrics(CARTPOLE, returns) == {}
    assert player_metrics(dataclasses.replace(CARTPOLE, agents=4), returns) == {"team_return": 1.0}
    shares = {"win_share": 0.5, "draw_share": 0.25, "loss_share": 0.25}
    assert player_metrics(dataclasses.replace(CARTPOLE, takes_turns=True), returns) == shares


NO_GAME = "CartPole-v1 is no game of two players who take turns; leave it out"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"environment__kwargs": {"players": 3}},
            f"environment.id: {RACE!r}: 3 agents take turns; "
            "give a game of two players, or a function of a PettingZoo ParallelEnv",
        ),
        (
            {"environment__id": "CartPole-v1", "self_play__pool": 3},
            f"self_play.pool: 3 is not allowed; {NO_GAME}",
        ),
        (
            {"environment__id": "CartPole-v1", "evaluation__opponent": ONE},
            f"evaluation.opponent: {ONE!r} is not allowed; {NO_GAME}",
        ),
    ],
)
def test_what_is_no_game_of_two_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    run = game_run(tmp_path, **({"environment__id": RACE} | changes))
    assert config_error(lambda: check_environment(run)) == message


def test_an_opponent_that_is_not_there_is_refused_before_the_start(tmp_path: Path) -> None:
    for name, message in (
        ("tests.environments_for_tests:add_on", "did you mean tests.environments_for_tests:add_one?"),
        ("absent.safetensors", "give a file that is there"),
    ):
        run = game_run(tmp_path / "run", evaluation__opponent=name)
        found = config_error(functools.partial(train, run))
        assert found.startswith("evaluation.opponent: ")
        assert found.endswith(message)
    policy = load_policy(train(tiny_run(tmp_path / "cartpole", stop__env_steps=100)).weights)
    settings = dataclasses.replace(policy.config.evaluation, opponent=ONE)
    assert config_error(lambda: evaluate_policy(policy, settings, 0)).endswith(NO_GAME)
