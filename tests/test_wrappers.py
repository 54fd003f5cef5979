from __future__ import annotations

import gymnasium
import numpy as np

from apex_acer.environments import make_environments
from apex_acer.wrappers import hide_velocities
from tests.conftest import run_config

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
