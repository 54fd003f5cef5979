"""The package's own wrappers: velocities hidden, continuous actions as discrete ones, repeated actions."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space

from apex_acer.environments.wrappers import DiscreteActions, RepeatActions, hide_velocities
from tests.conftest import COUNTDOWN, config_error
from tests.environments_for_tests import Spaces


def uneven(*bounds: tuple[float, float], dtype: Any = np.float32) -> Box:
    low, high = np.array(bounds, dtype).T
    return Box(low, high, dtype=dtype)


def all_actions(env: DiscreteActions) -> list[list[float]]:
    assert isinstance(env.action_space, Discrete)
    return [env.action(action).tolist() for action in range(int(env.action_space.n))]


def test_position_and_angle_are_what_is_left_of_cartpole() -> None:
    whole: Any = gymnasium.make("CartPole-v1")
    hidden, space = hide_velocities(gymnasium.make("CartPole-v1")), whole.observation_space
    assert hidden.observation_space == Box(space.low[[0, 2]], space.high[[0, 2]])
    np.testing.assert_array_equal(hidden.reset(seed=7)[0], whole.reset(seed=7)[0][[0, 2]])
    (obs, *others), (whole_obs, *expected) = hidden.step(1), whole.step(1)
    np.testing.assert_array_equal(obs, whole_obs[[0, 2]])
    assert others == expected


def test_every_combination_of_one_to_three_dimensions_is_there_once() -> None:
    """The first dimension's digit leads."""
    assert all_actions(DiscreteActions(gymnasium.make("Pendulum-v1"))) == [[-2], [-1], [0], [1], [2]]
    two = DiscreteActions(Spaces(action=uneven((-1, 1), (0, 8))), bins=3)
    assert all_actions(two) == [[x, y] for x in (-1, 0, 1) for y in (0, 4, 8)]
    in_fives = DiscreteActions(Spaces(action=uneven((0, 4), (0, 4), (0, 4))))
    assert in_fives.action_space == Discrete(125)
    assert in_fives.action(int("413", 5)).tolist() == [4, 1, 3]
    in_fives.action(0)[:] = 7  # an environment may change what it was given
    assert in_fives.action(0).tolist() == [0, 0, 0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_actions_are_of_the_space_up_to_its_very_bounds(dtype: Any) -> None:
    space = uneven((-0.1, 0.3), (1 / 3, 0.7), dtype=dtype)
    env = DiscreteActions(Spaces(action=space), bins=7)
    actions = [env.action(np.int64(action)) for action in range(49)]
    assert all(action.dtype == dtype and action in space for action in actions)
    np.testing.assert_array_equal(actions[0], space.low)
    np.testing.assert_array_equal(actions[-1], space.high)


@pytest.mark.parametrize(
    "space",
    [
        MultiDiscrete([2, 3]),
        Box(-1, 1, ()),
        Box(-1, 1, (1, 2)),
        Box(-1, 1, (4,)),
        Box(-1, np.inf, (2,)),
        Box(-np.inf, 1, (2,)),
        Box(0, 9, (2,), np.int64),
    ],
    ids=str,
)
def test_other_spaces_are_refused(space: Space[Any]) -> None:
    message = config_error(lambda: DiscreteActions(Spaces(action=space)))
    assert message.startswith(f"environment.wrappers: DiscreteActions got action space {str(space)[:6]}")
    assert message.endswith("supported: Box of one to three floats with finite bounds")


def test_a_single_value_is_no_choice() -> None:
    message = config_error(lambda: DiscreteActions(Spaces(action=uneven((-1, 1))), 1))
    assert message == "environment.wrappers: DiscreteActions has bins = 1; give 2 or more"


def test_rewards_of_a_repeated_action_add_up_until_the_episode_ends() -> None:
    environment = RepeatActions(gymnasium.make(COUNTDOWN, lengths=(5,), reward=2.0), 3)
    environment.reset(seed=0)
    assert [environment.step(0)[1:4] for _ in range(2)] == [(6.0, False, False), (4.0, True, False)]
