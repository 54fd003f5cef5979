"""One environment with pictures of it, for `play` and videos."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import VectorEnv

from apex_acer.config import ConfigError, EnvironmentConfig, require
from apex_acer.environments.registry import find_function, find_spec, make_atari_vector, make_vector
from apex_acer.environments.vector import AtariEnvironments, Environments, Step, uses_masks
from apex_acer.protocol.specification import Array, EnvironmentSpec

EMULATOR_FPS = 60  # of an NTSC console
ATARI_SCALE = 3  # the screen of the console is only 160 pixels wide
USUAL_FPS = 30  # if an environment's metadata have none


class Pictured(Environments):
    """One environment, or game of agents; `frames` are the pictures since the last reset or step, each `[H, W, 3]` uint8."""

    frames: list[Array]

    def __init__(self, vector: VectorEnv[Any, Any, Any], config: EnvironmentConfig, *, masks: bool | None) -> None:
        super().__init__(vector, config, masks=masks)
        self.fps = max(1, round(vector.metadata.get("render_fps") or USUAL_FPS))
        """Pictures per second of game time."""

    def reset(self, seed: int) -> Array:
        """Resets the environment and draws it; raises `ConfigError` if `render` returns no picture (`as_frame`)."""
        obs = super().reset(seed)
        self._draw()
        return obs

    def step(self, action: Array) -> Step:
        step = super().step(action)
        self._draw()
        return step

    def _draw(self) -> None:
        pictures: Any = self._vector.render()
        self.frames = [as_frame(self.id, pictures[0])]


class PicturedAtari(AtariEnvironments):
    """One Atari game; `frames` are all emulated frames since the last reset or step, in colour, enlarged by `ATARI_SCALE`.

    ALE's vector environment returns either the policy's observations or the screen, so there are two. With equal seeds and
    actions both play the same game, sticky actions included.
    """

    frames: list[Array]
    fps = EMULATOR_FPS

    def __init__(self, vector: VectorEnv[Any, Any, Any], screen: VectorEnv[Any, Any, Any], config: EnvironmentConfig):
        """`screen` is a second vector environment, in colour and without frame skip."""
        self._screen = screen
        super().__init__(vector, config, config.atari.frame_skip)

    def reset(self, seed: int) -> Array:
        obs = super().reset(seed)
        self.frames = [_enlarged(self._screen.reset(seed=seed)[0])]
        return obs

    def step(self, action: Array) -> Step:
        action = self.played(action)
        step = super().step(action)
        self.frames = []
        for _ in range(1 if step.reset[0] else self.spec.action_repeat):
            screen, _, terminated, truncated, _ = self._screen.step(action)
            self.frames.append(_enlarged(screen))
            if terminated[0] or truncated[0]:
                break
        return step

    def close(self) -> None:
        super().close()
        self._screen.close()


def make_pictured(config: EnvironmentConfig, found: EnvironmentSpec | None = None) -> Pictured | PicturedAtari:
    """One environment with pictures; raises `ConfigError` if it draws none.

    `found` is the specification from the check of the environment, if there was one.
    """
    config = config.local
    if config.is_atari:
        height, width = _screen_size(find_spec(config))
        screen: dict[str, Any] = {"grayscale": False, "img_height": height, "img_width": width}
        screen |= {"frameskip": 1, "maxpool": False}
        return PicturedAtari(make_atari_vector(config, 1), make_atari_vector(config, 1, **screen), config)
    if not find_function(config):  # whose pictures are known once it is made
        entry = find_spec(config).entry_point
        creator = load_env_creator(entry) if isinstance(entry, str) else entry
        modes = getattr(creator, "metadata", {}).get("render_modes", ())
        require("rgb_array" in modes, "environment.id", config.id, "it draws no pictures (render_mode rgb_array)")
    kwargs = {**config.keyword_arguments(), "render_mode": "rgb_array"}  # the run may have it, too, or another
    vector = make_vector(dataclasses.replace(config, kwargs=kwargs), 1, vectorization_mode="sync")
    return Pictured(vector, config, masks=uses_masks(config, found))


def as_frame(name: str, picture: Any) -> Array:
    """Converts a picture of the environment `name`, in colour, grey or RGBA, to a frame `[H, W, 3]` uint8.

    Raises `ConfigError` for anything else, because the encoder of videos would crash.
    """
    is_array = isinstance(picture, np.ndarray)
    frame = picture[..., None] if is_array and picture.ndim == 2 else picture
    if not is_array or frame.dtype != np.uint8 or frame.shape[2:] not in ((1,), (3,), (4,)) or frame.size == 0:
        drew = f"{picture.dtype}{list(picture.shape)}" if is_array else type(picture).__name__
        allowed = "have render give uint8 [height, width, 3], RGBA or grey"
        raise ConfigError(f"environment.id: {name!r} drew {drew}; {allowed}")
    coloured: Array = frame.repeat(3, 2) if frame.shape[2] == 1 else frame[..., :3]
    return coloured


def _screen_size(spec: EnvSpec) -> tuple[int, int]:
    """Rows and columns of a game's screen."""
    from ale_py import ALEInterface, LoggerMode

    ALEInterface.setLoggerMode(LoggerMode.Error)  # it prints a greeting on standard error
    height, width, _ = gymnasium.make(spec, obs_type="rgb").observation_space.shape  # type: ignore[misc]
    return height, width


def _enlarged(screen: Array) -> Array:
    """ALE's screen `[1, 1, H, W, 3]` as a frame `[3 H, 3 W, 3]`."""
    picture: Array = screen[0, 0].repeat(ATARI_SCALE, 0).repeat(ATARI_SCALE, 1)
    return picture
