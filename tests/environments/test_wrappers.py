from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space

from apex_acer.cli import main
from apex_acer.environments.vector import make_environments
from apex_acer.environments.wrappers import DiscreteActions, RepeatActions, hide_velocities
from tests.conftest import COUNTDOWN, config_error, run_config
from tests.environments_for_tests import Spaces

HIDDEN = run_config(id="CartPole-v1", wrappers=("apex_acer.wrappers:hide_velocities",))


def test_position_and_angle_are_what_is_left_of_cartpole() -> None:
    whole = gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="sync")
    environments = make_environments(HIDDEN.environment, 3, training=True)
    assert environments.spec.plane_shape == (2,)
    assert environments.spec.dtype == "float32"
    np.testing.assert_array_equal(environments.reset(7), whole.reset(seed=7)[0][:, [0, 2]])
    for action in np.random.default_rng(0).integers(2, size=(60, 3)):
        step, (obs, reward, terminated, *_) = environments.step(action), whole.step(action)
        np.testing.assert_array_equal(step.obs, obs[:, [0, 2]])
        np.testing.assert_array_equal(step.reward, reward)
        np.testing.assert_array_equal(step.terminated, terminated)
    environments.close()


def test_the_space_is_that_of_position_and_angle() -> None:
    whole = gymnasium.make("CartPole-v1").observation_space
    space = hide_velocities(gymnasium.make("CartPole-v1")).observation_space
    np.testing.assert_array_equal(space.low, whole.low[[0, 2]])
    np.testing.assert_array_equal(space.high, whole.high[[0, 2]])


# ── continuous actions as discrete ones ──

DISCRETE = "apex_acer.wrappers:DiscreteActions"


def uneven(*bounds: tuple[float, float], dtype: Any = np.float32) -> Box:
    low, high = np.array(bounds, dtype).T
    return Box(low, high, dtype=dtype)


def all_actions(env: DiscreteActions) -> list[list[float]]:
    assert isinstance(env.action_space, Discrete)
    return [env.action(action).tolist() for action in range(env.action_space.n)]


@pytest.mark.parametrize(
    ("name", "values"), [("Pendulum-v1", [-2, -1, 0, 1, 2]), ("MountainCarContinuous-v0", [-1, -0.5, 0, 0.5, 1])]
)
def test_one_continuous_action_becomes_five(name: str, values: list[float]) -> None:
    assert all_actions(DiscreteActions(gymnasium.make(name))) == [[value] for value in values]


def test_every_combination_of_two_and_three_dimensions_is_there_once() -> None:
    """The first dimension's digit leads."""
    two = DiscreteActions(Spaces(action=uneven((-1, 1), (0, 8))), bins=3)
    assert all_actions(two) == [[x, y] for x in (-1, 0, 1) for y in (0, 4, 8)]
    three = DiscreteActions(Spaces(action=uneven((0, 1), (-2, 2), (5, 6))), bins=2)
    assert all_actions(three) == [[x, y, z] for x in (0, 1) for y in (-2, 2) for z in (5, 6)]
    in_fives = DiscreteActions(Spaces(action=uneven((0, 4), (0, 4), (0, 4))))
    assert in_fives.action_space == Discrete(125)
    assert in_fives.action(int("413", 5)).tolist() == [4, 1, 3]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_actions_are_of_the_space_up_to_its_very_bounds(dtype: Any) -> None:
    space = uneven((-0.1, 0.3), (1 / 3, 0.7), dtype=dtype)
    env = DiscreteActions(Spaces(action=space), bins=7)
    actions = [env.action(np.int64(action)) for action in range(49)]
    assert all(action.dtype == dtype and action in space for action in actions)
    np.testing.assert_array_equal(actions[0], space.low)
    np.testing.assert_array_equal(actions[-1], space.high)


def test_an_environment_may_change_the_action_it_was_given() -> None:
    env = DiscreteActions(Spaces(action=uneven((-1, 1))))
    env.action(0)[:] = 7
    assert env.action(0) == [-1]


def test_training_steps_pendulum_as_with_the_torques_themselves() -> None:
    environments = make_environments(run_config(id="Pendulum-v1", wrappers=(DISCRETE,)).environment, 3, training=True)
    whole = gymnasium.make_vec("Pendulum-v1", 3, vectorization_mode="sync")
    assert environments.spec.num_actions == 5
    np.testing.assert_array_equal(environments.reset(7), whole.reset(seed=7)[0])
    for action in np.random.default_rng(0).integers(5, size=(210, 3)):  # beyond the end of an episode
        step, (obs, reward, *_) = environments.step(action), whole.step((action[:, None] - 2).astype(np.float32))
        np.testing.assert_array_equal(step.obs, obs)
        np.testing.assert_array_equal(step.reward, reward.astype(np.float32))
    environments.close()


@pytest.mark.parametrize(
    "space",
    [
        Discrete(2),
        MultiDiscrete([2, 3]),
        Box(-1, 1, ()),
        Box(-1, 1, (1, 2)),
        Box(-1, 1, (4,)),
        Box(np.arange(40, dtype=np.float32), 50),
        Box(-1, np.inf, (2,)),
        Box(-np.inf, 1, (2,)),
        Box(0, 9, (2,), np.int64),
    ],
    ids=lambda space: " ".join(str(space).split())[:40],
)
def test_other_spaces_are_refused(space: Space[Any]) -> None:
    message = config_error(lambda: DiscreteActions(Spaces(action=space)))
    assert message.startswith(f"environment.wrappers: DiscreteActions got action space {str(space)[:6]}")
    assert message.endswith("supported: Box of one to three floats with finite bounds")


@pytest.mark.parametrize("bins", [1, 0, -5])
def test_a_single_value_is_no_choice(bins: int) -> None:
    message = config_error(lambda: DiscreteActions(Spaces(action=uneven((-1, 1))), bins))
    assert message == f"environment.wrappers: DiscreteActions has bins = {bins}; give 2 or more"


def test_train_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "cartpole", "--environment.wrappers", DISCRETE]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "DiscreteActions got action space Discrete(2); supported: Box" in line


def test_rewards_of_a_repeated_action_add_up_until_the_episode_ends() -> None:
    environment = RepeatActions(gymnasium.make(COUNTDOWN, lengths=(5,), reward=2.0), 3)
    environment.reset(seed=0)
    assert [environment.step(0)[1:4] for _ in range(2)] == [(6.0, False, False), (4.0, True, False)]
