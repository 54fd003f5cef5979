from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from apex_acer.config import EnvironmentConfig
from apex_acer.config.runfile import dump_run
from apex_acer.environments import check
from apex_acer.environments.check import check_environment
from apex_acer.manager.preparation import prepare
from apex_acer.tools.doctor.run import check_run
from tests.conftest import COUNTDOWN, config_error
from tests.environments_for_tests import Clock
from tests.runs import tiny_run

HEAD = """
import os, random, sys, time
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

class Own(gymnasium.Env):
    def __init__(self):
        self.observation_space, self.action_space = Box(-1, 1, (3,), np.float32), Discrete(2)
    def _obs(self):
        return np.zeros(3, np.float32)
"""
RESET = "    def reset(self, *, seed=None, options=None):\n        return {}, {}\n"
STEP = "    def step(self, action):\n        return {}\n"
GOOD_RESET, GOOD_STEP = RESET.format("self._obs()", "{}"), STEP.format("self._obs(), 1.0, False, False, {}")
REGISTER = "gymnasium.register('Own-v0', Own{})\n"
LINE = HEAD.count("\n") + 1  # of what follows it


def own(folder: Path, monkeypatch: pytest.MonkeyPatch, methods: str, options: str = "") -> EnvironmentConfig:
    """The configuration of an environment in a file of its own."""
    (folder / "own_environment.py").write_text(HEAD + methods + REGISTER.format(options))
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "own_environment", raising=False)
    gymnasium.registry.pop("Own-v0", None)
    return EnvironmentConfig(id="own_environment:Own-v0")


ENDS = ", max_episode_steps=50"
UNSEEDED = "    def reset(self):\n        return self._obs(), {}\n"


@pytest.mark.parametrize("options", ["", ENDS, ", disable_env_checker=True"])
@pytest.mark.parametrize(
    ("methods", "what", "line"),
    [
        (UNSEEDED + GOOD_STEP, "reset raised TypeError: Own.reset() got an unexpected keyword argument 'seed'", 0),
        (
            RESET.format("self._obs()", "{'next': seed + 1}") + GOOD_STEP,
            "reset raised TypeError: unsupported operand",
            1,
        ),
        (GOOD_RESET + STEP.format("self._obs(), 1.0, False, {}"), "step r", 2),
        (
            GOOD_RESET + STEP.format("self._obs(), 1 / 0, False, False, {}"),
            "step raised ZeroDivisionError: division by",
            3,
        ),
        (GOOD_RESET + STEP.format("sys.exit(3)"), "step raised SystemExit: 3", 3),
        ("    def reset(self, *, seed=None, options=None):\n        return self._obs()\n" + GOOD_STEP, "reset r", 0),
        (RESET.format("np.zeros(4)", "{}") + GOOD_STEP, "reset gave an observation of shape [4], its observation_s", 0),
        (RESET.format("np.full(3, np.nan)", "{}") + GOOD_STEP, "reset gave an observation that is not finite", 0),
        (
            RESET.format("['a', 'b', 'c']", "{}") + GOOD_STEP,
            "reset gave an observation of type <U1, its observation_",
            0,
        ),
        (RESET.format("self._obs()", "None") + GOOD_STEP, "reset ", 0),
        (
            GOOD_RESET + STEP.format("self._obs(), None, False, False, {}"),
            "step gave the reward None, not a finite number",
            2,
        ),
        (
            GOOD_RESET + STEP.format("self._obs(), float('inf'), 0, 0, {}"),
            "step gave the reward inf, not a finite number",
            2,
        ),
        (
            GOOD_RESET + STEP.format("self._obs(), 1.0, False, {}, {}"),
            "step gave truncated = {}, not True or False",
            2,
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_the_user_s_own_line(
    methods: str, what: str, line: int, options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = own(tmp_path, monkeypatch, methods, options)
    message = config_error(lambda: check_environment(config))
    assert message.startswith(f"environment.id: 'own_environment:Own-v0' fails: {what}")
    assert f", at own_environment.py:{LINE + line} in " in message


def test_an_old_step_is_told_what_to_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = own(tmp_path, monkeypatch, GOOD_RESET + STEP.format("self._obs(), 1.0, False, {}"))
    message = config_error(lambda: check_environment(config))
    assert message.endswith("step(action) must return (observation, reward, terminated, truncated, info)")


def test_nothing_is_started_and_no_folder_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = own(tmp_path, monkeypatch, UNSEEDED + GOOD_STEP)
    run = tiny_run(tmp_path / "run", engine="local", environment__id=config.id)
    assert "unexpected keyword argument 'seed'" in config_error(lambda: prepare(run, 0.0))
    assert not (tmp_path / "run").exists()
    (tmp_path / "run.toml").write_text(dump_run(run))
    (problem,) = [finding for finding in check_run(str(tmp_path / "run.toml"), str) if finding.topic == "environment"]
    assert problem.level == "problem"
    assert "unexpected keyword argument 'seed'" in problem.text


def test_mistakes_of_a_constructor_and_a_module_have_their_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = own(tmp_path, monkeypatch, "    render_mode = property(lambda self: 1 / 0)\n")
    message = config_error(lambda: check_environment(config))
    assert f"division by zero, at own_environment.py:{LINE} in <lambda>" in message
    config = own(tmp_path, monkeypatch, "1 / 0\n")
    message = config_error(lambda: check_environment(config))
    assert f"division by zero, at own_environment.py:{LINE} in <module>" in message


class Sloppy(Clock):
    """Works, though gymnasium would warn of all that it does."""

    def reset(self, seed: Any = 3, options: Any = None) -> tuple[Any, dict[str, Any]]:  # type: ignore[override]
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, _, info = super().step(action)
        return [float(obs[0]) + 7], np.float64(reward), np.array([int(terminated)]), None, info


gymnasium.register("Sloppy-v0", Sloppy, kwargs={"length": 4})


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (f"{__name__}:Sloppy-v0", {}),
        ("CartPole-v1", {}),
        ("CartPole-v1", {"wrappers": ("apex_acer.wrappers:hide_velocities",)}),
        ("Pendulum-v1", {"wrappers": ("apex_acer.wrappers:DiscreteActions",)}),
        (COUNTDOWN, {"kwargs": '{"lengths": [2], "shape": [10, 10, 4], "dtype": "uint8", "first_action": 3}'}),
    ],
)
def test_what_works_is_taken_without_a_word(
    name: str, options: dict[str, Any], capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        spec, (understood,) = check_environment(EnvironmentConfig(id=name, **options))
    assert understood == spec.describe()
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list


def test_an_action_mask_is_said_to_be_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = own(tmp_path, monkeypatch, RESET.format("self._obs()", "{'action_mask': np.ones(2)}") + GOOD_STEP)
    _, note = check_environment(config).notes
    assert note.startswith("info['action_mask'] is ignored")


class Lucky(gymnasium.Env[Any, Any]):
    """Draws from generators that are not its own."""

    observation_space, action_space = Box(-1, 1, (1,), np.float64), Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.array([np.random.uniform()]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.array([np.random.uniform()]), random.random(), random.random() < 0.5, False, {}


gymnasium.register("Lucky-v0", Lucky)


def test_global_generators_are_left_as_they_were() -> None:
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index,union-attr]
    check_environment(EnvironmentConfig(id=f"{__name__}:Lucky-v0"))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # type: ignore[index,union-attr]


SLOW = "    def reset(self, *, seed=None, options=None):\n        time.sleep(60)\n"


def test_an_environment_that_hangs_is_named_and_then_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(check, "NOTICE_S", 0.1)
    monkeypatch.setattr(check, "DEADLINE_S", 0.3)
    config = own(tmp_path, monkeypatch, SLOW + GOOD_STEP)
    message = config_error(lambda: check_environment(config))
    assert message == "environment.id: 'own_environment:Own-v0' did not answer within 0.3 s; give one that answers"
    (said,) = caplog.messages
    where = f"own_environment.py:{LINE + 1} in reset"
    assert said == f"environment.id: 'own_environment:Own-v0' has not answered for 0.1 s, at {where}; Ctrl-C ends this"


def test_ctrl_c_ends_the_wait_for_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = own(tmp_path, monkeypatch, SLOW + GOOD_STEP)
    command = [sys.executable, "-m", "apex_acer", "train", "cartpole", "--environment.id", config.id]
    program = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, env=os.environ, text=True)
    assert program.stderr is not None
    assert "has not answered for 5 s, at own_environment.py" in program.stderr.readline()
    start = time.monotonic()
    program.send_signal(signal.SIGINT)
    assert program.wait(timeout=10) == 130
    assert time.monotonic() - start < 2
    assert program.stderr.read() == "apex-acer: interrupted\n"
    program.stderr.close()
