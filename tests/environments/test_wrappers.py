"""The package's own wrappers: velocities hidden, continuous actions as discrete ones, repeated actions, pictures."""

from __future__ import annotations

import os
from fractions import Fraction
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space

from apex_acer.config.runfile import load_run
from apex_acer.environments.vector import environment_spec, make_environments
from apex_acer.environments.wrappers import DiscreteActions, RepeatActions, hide_velocities, pixels, shrink
from tests import ROOT
from tests.conftest import COUNTDOWN, config_error, run_config
from tests.environments_for_tests import Aim, Spaces


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


# ── pictures ──

PICTURES = '{"render_mode": "rgb_array"}'


def slowly_shrunk(frame: np.ndarray, size: int) -> list[list[int]]:
    """Averages in fractions: each pixel becomes `size` by `size` equal ones, of which blocks are averaged."""
    height, width, _ = frame.shape
    grey = [[Fraction(299 * r + 587 * g + 114 * b, 1000) for r, g, b in row] for row in frame.tolist()]
    fine = [[grey[y // size][x // size] for x in range(width * size)] for y in range(height * size)]

    def block(row: int, column: int) -> Fraction:
        inside = range(column * width, (column + 1) * width)
        return sum((fine[y][x] for y in range(row * height, (row + 1) * height) for x in inside), Fraction())

    return [[round(block(y, x) / (height * width)) for x in range(size)] for y in range(size)]


@pytest.mark.parametrize(("height", "width", "size"), [(13, 10, 4), (8, 12, 4), (3, 5, 4), (6, 6, 6), (7, 1, 2)])
def test_a_picture_is_shrunk_by_exact_area_averages(height: int, width: int, size: int) -> None:
    rng = np.random.default_rng(height)
    frame = rng.integers(256, size=(height, width, 3), dtype=np.uint8)
    frame[:, : width // 2] //= 64  # dark halves, which differ by little
    assert shrink(frame, size).tolist() == slowly_shrunk(frame, size)


def test_equal_distances_are_rounded_to_even_and_white_stays_white() -> None:
    halves = np.array([[[0] * 3, [1] * 3], [[1] * 3, [2] * 3]], np.uint8)
    assert shrink(halves[:1], 1).tolist() == [[0]]
    assert shrink(halves[1:], 1).tolist() == [[2]]
    assert (shrink(np.full((500, 501, 3), 255, np.uint8), 84) == 255).all()


def test_a_large_picture_loses_no_digits() -> None:
    """One shade of one pixel decides how the average of 100 x 100 is rounded."""
    frame = np.zeros((1000, 1000, 3), np.uint8)
    frame[:50, :100] = 255
    assert shrink(frame, 10)[0, 0] == 128  # 127.5
    frame[0, 0] -= 1
    assert shrink(frame, 10)[0, 0] == 127


def test_training_steps_pendulum_as_without_pictures_and_sees_its_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    pictures = run_config(id="Pendulum-v1", wrappers=("apex_acer.wrappers:pixels",), kwargs=PICTURES).environment
    environments = make_environments(pictures, 2, training=True)
    assert (environments.spec.plane_shape, environments.spec.dtype) == ((1, 84, 84), "uint8")
    whole = gymnasium.make_vec("Pendulum-v1", 2, vectorization_mode="sync", render_mode="rgb_array")
    whole.reset(seed=7)
    obs, resets = environments.reset(7), 0
    for number, action in enumerate(np.random.default_rng(0).uniform(-1, 1, size=(202, 2, 1)).astype(np.float32)):
        if number % 100 < 3:
            drawn: Any = whole.render()
            np.testing.assert_array_equal(obs[:, 0], [shrink(frame, 84) for frame in drawn])
        step, (_, reward, _, truncated, _) = environments.step(action), whole.step(2 * action)
        np.testing.assert_array_equal(step.reward, reward.astype(np.float32))
        np.testing.assert_array_equal(step.truncated, truncated)
        obs, resets = step.obs, resets + int(step.reset.sum())
    assert resets == 2
    assert os.environ["SDL_VIDEODRIVER"] == "dummy"  # nothing looked for a display
    environments.close()


def test_a_display_is_left_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("SDL_VIDEODRIVER", "")
    monkeypatch.delenv("SDL_VIDEODRIVER")
    pixels(Aim(render_mode="rgb_array")).reset(seed=0)
    assert "SDL_VIDEODRIVER" not in os.environ


def test_pictures_have_another_size_if_it_is_given() -> None:
    env = pixels(Aim(render_mode="rgb_array"), 10)
    obs, _ = env.reset(seed=0)
    assert env.observation_space == Box(0, 255, (10, 10), np.uint8)
    assert obs in env.observation_space
    drawn: Any = env.render()
    assert (obs == drawn[0, 0, 0]).all()


def test_an_environment_without_pictures_is_refused_in_one_line() -> None:
    fine = run_config(id=COUNTDOWN, wrappers=("apex_acer.wrappers:pixels",)).environment
    message = config_error(lambda: make_environments(fine, 1, training=True))
    assert message.startswith("environment.id: 'Countdown-v0' is not allowed; pixels needs pictures, and it draws none")
    message = config_error(lambda: pixels(Aim()))
    assert message.startswith("environment.kwargs: 'render_mode None' is not allowed; pixels needs rgb_array")
    assert message.endswith(f"give --environment.kwargs '{PICTURES}'")


def test_a_picture_that_is_none_is_refused_in_one_line() -> None:
    env = Aim(render_mode="rgb_array")
    env.render = lambda: None  # type: ignore[method-assign]
    message = config_error(lambda: pixels(env).reset())
    assert message.startswith("environment.id: 'Aim' drew NoneType; have render give uint8")


def test_presets_see_three_grey_pictures() -> None:
    dqn, sac = (
        environment_spec(load_run(ROOT / f"launch/pendulum-pixels-{name}.toml").environment)
        for name in ("apex-dqn", "sac")
    )
    assert [(spec.obs_shape, spec.dtype) for spec in (dqn, sac)] == [((3, 84, 84), "uint8")] * 2
    assert (dqn.num_actions, sac.action_dim) == (5, 1)
