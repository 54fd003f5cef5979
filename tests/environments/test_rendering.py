"""Pictures are of the game that the policy plays."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from apex_acer.config import AtariConfig, EnvironmentConfig
from apex_acer.environments.rendering import ATARI_SCALE, PicturedAtari, as_frame, make_pictured
from apex_acer.environments.vector import Step, make_environments
from apex_acer.environments.wrappers import shrink
from tests.conftest import COUNTDOWN, config_error

COLOUR = {"grayscale": False, "screen_size": 50, "frame_skip": 3, "noop_max": 0, "fire_reset": False}
GAMES: dict[str, tuple[str, int, int, dict[str, Any]]] = {  # frames of a game and rows of its screen
    "lives": ("ALE/Breakout-v5", 203, 210, {"sticky_actions": 0.25}),
    "colour": ("ale_py:ALE/AirRaid-v5", 152, 250, COLOUR),
}


def shrinking(size: int, screen: int) -> np.ndarray:
    """`[size, screen]`: the share that each pixel of a screen has in a pixel of the plane, by area."""
    edges = np.arange(size + 1) * screen / size
    pixels = np.arange(screen)
    overlap = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    shares: np.ndarray = np.clip(overlap, 0, None) * size / screen
    return shares


def seen(frames: list[np.ndarray], config: AtariConfig) -> np.ndarray:
    """What a policy sees of the newest two frames in colour."""
    unscaled = [frame[::ATARI_SCALE, ::ATARI_SCALE].astype(float) for frame in frames[-2:]]
    if config.grayscale:
        unscaled = [(frame @ [[0.299], [0.587], [0.114]]) for frame in unscaled]
    pooled = np.maximum.reduce(unscaled).transpose(2, 0, 1)
    size = config.screen_size
    planes: np.ndarray = shrinking(size, pooled.shape[1]) @ pooled @ shrinking(size, pooled.shape[2]).T
    return planes


@pytest.mark.parametrize(("name", "frames", "rows", "settings"), GAMES.values(), ids=GAMES)
def test_atari_s_pictures_are_of_what_the_policy_sees(
    name: str, frames: int, rows: int, settings: dict[str, Any]
) -> None:
    """Its planes are ALE's own to the bit; what they become when made from the pictures differs by rounding."""
    kwargs = json.dumps({"max_num_frames_per_episode": frames})
    config = EnvironmentConfig(id=name, kwargs=kwargs, atari=AtariConfig(**settings))
    plain, pictured = make_environments(config, 1, training=False), make_pictured(config)
    assert isinstance(pictured, PicturedAtari)
    assert plain.spec.plane_shape[0] == (1 if config.atari.grayscale else 3)
    np.testing.assert_array_equal(plain.reset(5), pictured.reset(5))
    actions = np.random.default_rng(2).integers(plain.spec.num_actions, size=(60, 1))
    resets = 0
    for number, action in enumerate(actions):
        step, expected = pictured.step(action), plain.step(action)
        for field in Step._fields:
            np.testing.assert_array_equal(getattr(step, field), getattr(expected, field), err_msg=field)
        resets += int(step.reset[0])
        assert {frame.shape for frame in pictured.frames} == {(rows * ATARI_SCALE, 160 * ATARI_SCALE, 3)}
        ended = step.reset[0] or step.terminated[0] or step.truncated[0]
        assert ended or len(pictured.frames) == config.atari.frame_skip
        if not ended and number % 10 == 0:  # at an end ALE leaves the newest frame out
            assert np.abs(seen(pictured.frames, config.atari) - step.obs[0]).max() < 3
    assert resets
    plain.close()
    pictured.close()


def test_others_are_drawn_by_themselves() -> None:
    pictured = make_pictured(EnvironmentConfig(id="CartPole-v1"))
    pictured.reset(1)
    before = pictured.frames
    assert pictured.fps == 50
    pictured.step(np.array([1]))
    assert [frame.shape for frame in before + pictured.frames] == [(400, 600, 3)] * 2
    assert (before[0] != pictured.frames[0]).any()
    pictured.close()


@pytest.mark.parametrize("shape", [(4, 6, 3), (4, 6, 4), (4, 6), (4, 6, 1)])
def test_grey_becomes_colour_and_alpha_is_left_out(shape: tuple[int, ...]) -> None:
    picture = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    frame = as_frame("X-v0", picture)
    assert frame.shape == (4, 6, 3)
    assert frame.dtype == np.uint8
    channels = picture.reshape(4, 6, -1)
    np.testing.assert_array_equal(frame[..., 1], channels[..., 1 % channels.shape[2]])


@pytest.mark.parametrize(
    ("picture", "drew"),
    [
        (None, "NoneType"),
        (np.zeros((4, 6, 3)), "float64[4, 6, 3]"),
        (np.zeros((4, 6, 2), np.uint8), "uint8[4, 6, 2]"),
        (np.zeros((0, 6, 3), np.uint8), "uint8[0, 6, 3]"),
        (np.zeros(3, np.uint8), "uint8[3]"),
    ],
)
def test_what_is_no_picture_is_said_in_one_line(picture: Any, drew: str) -> None:
    message = config_error(lambda: as_frame("X-v0", picture))
    assert message.startswith(f"environment.id: 'X-v0' drew {drew}; have render give uint8")


def test_no_pictures_are_said_in_one_line() -> None:
    message = config_error(lambda: make_pictured(EnvironmentConfig(id=COUNTDOWN)))
    assert message == f"environment.id: {COUNTDOWN!r} is not allowed; it draws no pictures (render_mode rgb_array)"


@pytest.mark.parametrize("mode", ["human", "rgb_array"])
def test_a_render_mode_of_the_run_s_own_gives_way_to_pictures(mode: str) -> None:
    kwargs = {"render_mode": mode, "sutton_barto_reward": True}
    pictured = make_pictured(EnvironmentConfig(id="CartPole-v1", kwargs=kwargs))
    pictured.reset(1)
    assert [frame.shape for frame in pictured.frames] == [(400, 600, 3)]
    assert pictured.step(np.array([1])).reward.tolist() == [0.0]  # the other keyword counts
    pictured.close()


def test_a_policy_that_sees_pictures_plays_the_game_that_is_shown() -> None:
    wrappers = ("apex_acer.wrappers:DiscreteActions", "apex_acer.wrappers:pixels")
    pictured = make_pictured(EnvironmentConfig("Pendulum-v1", {"render_mode": "rgb_array"}, wrappers))
    obs = pictured.reset(1)
    for action in ([0], [4]):
        np.testing.assert_array_equal(obs[0, 0], shrink(pictured.frames[0], 84))
        obs = pictured.step(np.array(action)).obs
    pictured.close()
