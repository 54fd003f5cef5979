"""`apex-acer play` as a user meets it: real policies, real games, videos decoded again."""

from __future__ import annotations

import dataclasses
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import av
import gymnasium
import numpy as np
import pygame
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from apex_acer.actor.evaluator import evaluate_policy
from apex_acer.actor.policy import Policy, load_policy
from apex_acer.cli import main
from apex_acer.environments.vector import make_environments
from apex_acer.networks.metadata import describe
from apex_acer.networks.weights import named_tensors, pack, write
from tests.conftest import Refused, assert_refused
from tests.runs import tiny_run


class Painted(gymnasium.Env[Any, Any]):
    """Games of three steps whose returns tell the actions, with pictures of an odd size: blue, and ever more red."""

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": ["rgb_array"],
        "render_fps": 25,
    }

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space, self.action_space = Box(-1.0, 1.0, (4,), np.float32), Discrete(2)
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return np.ones(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return np.ones(4, np.float32), float(action * 10**self._step), self._step == 3, False, {}

    def render(self) -> np.ndarray:
        picture = np.zeros((51, 77, 3), np.uint8)
        picture[..., 2] = 200
        picture[:, :20, 0] = 80 * self._step
        return picture


class Growing(Painted):
    """Each picture is larger than the one before."""

    def render(self) -> np.ndarray:
        return np.zeros((60 + 2 * self._step, 64, 3), np.uint8)


class Frozen(Painted):
    """The third step never ends."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._step == 2:
            time.sleep(600)
        return super().step(action)


gymnasium.register("Frozen-v0", f"{__name__}:Frozen")
gymnasium.register("Painted-v0", f"{__name__}:Painted")
gymnasium.register("Growing-v0", f"{__name__}:Growing", disable_env_checker=True)
PAINTED: dict[str, Any] = {"environment__id": f"{__name__}:Painted-v0"}


def weights_file(folder: Path, seed: int = 1, **changes: Any) -> Path:
    """A fresh policy whose actions depend on what it sees."""
    config = tiny_run(**changes)
    environments = make_environments(config.environment, 1, training=False)
    torch.manual_seed(seed)
    policy = Policy(config, environments.spec)
    with torch.no_grad():
        policy.network.get_parameter("pi_logits.weight").mul_(300)
    path = folder / "weights.safetensors"
    metadata = describe(config, policy.spec, env_steps=0, updates=0)
    write(path, pack(named_tensors(policy.network, "network"), metadata))
    environments.close()
    return path


def decoded(path: Path) -> tuple[np.ndarray, float]:
    """Frames `[F, H, W, 3]`, and how many a second has."""
    with av.open(str(path)) as container:
        rate = container.streams.video[0].average_rate
        assert rate is not None
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]), float(rate)


def printed_returns(output: str) -> list[float]:
    lines = [line for line in output.splitlines() if line.startswith("episode ")]
    return [float(line.split("return ")[1].split(",")[0]) for line in lines]


@pytest.mark.parametrize("kind", ["mp4", "gif"])
def test_every_frame_of_a_game_is_in_the_video(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / f"painted.{kind}"
    assert main(["play", str(weights_file(tmp_path, **PAINTED)), "--video", str(path), "--episodes", "2"]) == 0
    out = capsys.readouterr().out
    assert [line.split(": ")[0] for line in out.splitlines()] == ["episode 1", "episode 2", "video"]
    frames, rate = decoded(path)
    assert rate == 25
    assert frames.shape == (8, 51 + (kind == "mp4"), 77 + (kind == "mp4"), 3)  # the final pictures among them
    left, right = np.zeros((8, 3)), np.array([0, 0, 200])
    left[:, 0], left[:, 2] = 80 * np.array([0, 1, 2, 3, 0, 1, 2, 3]), 200
    assert np.abs(frames[:, 25, 10].astype(int) - left).max() < 12
    assert np.abs(frames[:, 25, 60].astype(int) - right).max() < 12
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [path.name, "weights.safetensors"]


def test_cartpole_is_played_as_it_is_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cartpole.mp4"
    weights = weights_file(tmp_path, network__lstm=8)
    policy = load_policy(weights)
    row = evaluate_policy(policy, dataclasses.replace(policy.config.evaluation, episodes=1), 4)
    assert main(["play", str(weights), "--video", str(path), "--episodes", "2", "--fps", "40", "--seed", "4"]) == 0
    returns = printed_returns(capsys.readouterr().out)
    assert returns[0] == row["eval_return"]
    frames, rate = decoded(path)
    assert rate == 40
    assert frames.shape[1:] == (400, 600, 3)
    assert len(returns) == 2
    assert len(frames) == sum(returns) + 2
    assert (frames[0] != frames[-1]).any()
    assert np.ptp(frames[0].astype(int), axis=-1).max() > 50  # the pole is brown


def test_a_policy_that_remembers_forgets_with_every_game(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy games that all look alike end alike."""
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")  # a window that nobody sees
    weights = weights_file(tmp_path, seed=3, **PAINTED, network__lstm=8)
    policy, obs = load_policy(weights), np.ones(4, np.float32)
    game, another = ([policy.act(obs) for _ in range(3)] for _ in range(2))
    assert game != another  # without forgetting
    assert main(["play", str(weights), "--episodes", "3", "--fps", "1000"]) == 0
    expected = sum(action * 10 ** (1 + step) for step, action in enumerate(game))
    assert printed_returns(capsys.readouterr().out) == [expected] * 3


def test_closing_the_window_ends_the_play(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    weights = weights_file(tmp_path, **PAINTED)
    pygame.display.init()
    pygame.event.post(pygame.event.Event(pygame.QUIT))
    assert main(["play", str(weights), "--episodes", "1000000"]) == 0
    assert capsys.readouterr().out == ""


def test_what_cannot_be_shown_is_one_line(tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    table = {
        "--video x.avi": "video … x.avi … .mp4 or .gif",
        "--video absent/x.mp4": "video … absent/x.mp4 … folder that exists",
        "--video x.mp4 --fps 0": "fps … 0 … 1 or more",
        "--video x.mp4 --episodes 0": "episodes … 0 … 1 or more",
        "--video x.mp4 --policy best": "policy … best … greedy or sampled",
        "": "video: there is no display to open a window on; give --video out.mp4",
        f"--video {'x' * 254}.mp4": "video: 'xxx … cannot be written (File name too long)",
    }
    weights = weights_file(tmp_path, **PAINTED)
    assert_refused(refused, {f"play {weights} {flags}": parts for flags, parts in table.items()})
    growing = weights_file(tmp_path, environment__id=f"{__name__}:Growing-v0")
    said = "video: a frame has 64 x 62 pixels, the first one had 64 x 60; draw all in one size"
    assert_refused(refused, {f"play {growing} --video out.mp4": said})
    assert [entry.name for entry in tmp_path.iterdir()] == [weights.name]


@pytest.mark.parametrize("verb", ["evaluate", "play"])
def test_a_game_ends_if_its_environment_never_answers(tmp_path: Path, verb: str) -> None:
    environment = f"{__name__}:Frozen-v0"
    path = weights_file(tmp_path, environment__id=environment, supervision__evaluation_minutes=0.02)
    command = [sys.executable, "-m", "apex_acer", verb, str(path), "--import-modules"]
    command += ["--video", str(tmp_path / "game.mp4")] * (verb == "play")
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    said = f"apex-acer: environment.id: '{environment}' did not answer within 1.2 s; give one that answers"
    assert (ended.returncode, ended.stderr) == (1, f"{said} (supervision.evaluation_minutes)\n")


def test_an_environment_that_has_changed_since_the_training_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    path, made = weights_file(tmp_path, **PAINTED), Painted.__init__

    def changed(self: Painted, render_mode: str | None = None) -> None:
        made(self, render_mode)
        self.observation_space, self.action_space = Box(-1.0, 1.0, (3,), np.float32), Discrete(3)

    monkeypatch.setattr(Painted, "__init__", changed)
    said = "of an observation was (4,) and is (3,), the action space was Discrete(2) and is Discrete(3)"
    assert_refused(refused, {f"evaluate {path}": said, f"play {path} --video {tmp_path}/game.mp4": said})
    assert list(tmp_path.iterdir()) == [path]


def test_a_video_that_cannot_be_finished_leaves_the_one_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights, path = weights_file(tmp_path), tmp_path / "cartpole.mp4"
    path.write_bytes(b"the one before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))  # as a full disk
    try:
        assert main(["play", str(weights), "--video", str(path)]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    error = capsys.readouterr().err
    assert (error.count("\n"), "cannot be written: File too large" in error) == (1, True), error
    assert path.read_bytes() == b"the one before"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [path.name, weights.name]


@pytest.mark.parametrize("pressed", [1, 200])
def test_ctrl_c_keeps_the_frames_up_to_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], pressed: int
) -> None:
    """As those who wait for a film would have it; without a frame, the file before stays."""
    weights, path = weights_file(tmp_path, **PAINTED), tmp_path / "x.mp4"
    path.write_bytes(b"the one before")
    render, drawn = Painted.render, []  # the latter with an entry for each picture

    def press(self: Painted) -> np.ndarray:
        drawn.append(self)
        if len(drawn) == pressed:
            signal.raise_signal(signal.SIGINT)
        return render(self)

    monkeypatch.setattr(Painted, "render", press)
    assert main(["play", str(weights), "--video", str(path), "--episodes", "1000000"]) == 130
    said = capsys.readouterr().err
    if pressed == 1:
        assert (said, path.read_bytes()) == ("apex-acer: interrupted\n", b"the one before")
    else:
        assert (said, len(decoded(path)[0])) == (f"apex-acer: interrupted; video: {path}\n", pressed - 1)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [weights.name, path.name]
