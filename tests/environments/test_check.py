"""What a check finds before a run starts: mistakes in a user's environment, by line, and actions that do not suit."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from apex_acer.algorithms.acer.settings import AcerConfig
from apex_acer.algorithms.dqn.settings import ApexDqnConfig
from apex_acer.algorithms.sac.settings import SacConfig
from apex_acer.cli import main
from apex_acer.config import AlgorithmConfig, RunConfig, settings_classes
from apex_acer.config.runfile import dump_run, load_run
from apex_acer.environments.check import check_environment
from apex_acer.environments.vector import environment_spec, make_environments
from apex_acer.networks.weights import pack, read, write
from apex_acer.tools.doctor.run import check_run
from tests.conftest import COUNTDOWN, config_error, run_config
from tests.environments_for_tests import Clock, Rooms, register
from tests.runs import tiny_run

MODULE = "tests.environments_for_tests"
HEAD = """
import os, random, signal, subprocess, sys, threading, time
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

class Own(gymnasium.Env):
    observation_space, action_space = Box(-1, 1, (3,), np.float32), Discrete(2)
    def __init__(self):
        {made}
    def close(self):
        if hasattr(self, 'lock'):
            os.rmdir('lock')
    def _obs(self):
        return np.zeros(3, np.float32)
"""
LINE = HEAD.count("\n") + 1  # of `reset`


def own(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    made: str = "pass",
    signature: str = "self, *, seed=None, options=None",
    reset: str = "self._obs(), {}",
    step: str = "self._obs(), 1.0, False, False, {}",
    options: str = "",
) -> RunConfig:
    """The configuration of a run in an environment in a file of its own, whose constructor does `made`."""
    methods = (
        f"    def reset({signature}):\n        return {reset}\n    def step(self, action):\n        return {step}\n"
    )
    (folder / "own_environment.py").write_text(
        f"{HEAD.format(made=made)}{methods}gymnasium.register('Own-v0', Own{options})\n"
    )
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "own_environment", raising=False)
    gymnasium.registry.pop("Own-v0", None)
    return run_config(id="own_environment:Own-v0")


FOUR = "self._obs(), 1.0, False, {}"  # values, of which there ought to be five
UNSEEDED, UNCHECKED = {"signature": "self"}, {"options": ", disable_env_checker=True"}
UNEXPECTED = "reset raised TypeError: Own.reset() got an unexpected keyword argument 'seed'"
MISTAKES: list[tuple[dict[str, str], str, int]] = [  # and the line, from that of `reset`
    (UNSEEDED, UNEXPECTED, 0),
    (UNSEEDED | UNCHECKED, UNEXPECTED, 0),
    ({"step": FOUR} | UNCHECKED, "step returned 4 values", 2),
    ({"reset": "self._obs(), {'next': seed + 1}"}, "reset raised TypeError: unsupported operand", 1),
    ({"reset": "self._obs()"}, "reset returned ", 0),
    ({"reset": "self._obs(), None"} | UNCHECKED, "reset gave info = None, not a dictionary", 0),
    ({"reset": "np.zeros(4), {}"}, "reset gave an observation of shape [4], its observation_space has [3]", 0),
    ({"reset": "np.full(3, np.nan), {}"}, "reset gave an observation with nan, allowed is a", 0),
    ({"reset": "['a', 'b', 'c'], {}"}, "reset gave an observation of type <U1, its observation_space has", 0),
    ({"step": FOUR}, "step r", 2),
    ({"step": "np.zeros(4), 1.0, False, False, {}"}, "step gave an observation of shape [4]", 2),
    ({"step": "self._obs(), 1 / 0, False, False, {}"}, "step raised ZeroDivisionError: division by", 3),
    ({"step": "sys.exit(3)"}, "step raised SystemExit: 3", 3),
    ({"step": "self._obs(), None, False, False, {}"}, "step gave the reward None, not a number", 2),
    ({"step": "self._obs(), float('inf'), 0, 0, {}"}, "step gave the reward inf, allowed is", 2),
    ({"step": "self._obs(), 1.0, False, {}, {}"}, "step gave truncated = {}, not True or False", 2),
]


@pytest.mark.parametrize(("changes", "what", "line"), MISTAKES, ids=str)
def test_a_mistake_is_one_line_that_names_the_user_s_own_line(
    changes: dict[str, str], what: str, line: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = own(tmp_path, monkeypatch, **changes)
    message = config_error(lambda: check_environment(config))
    assert message.startswith(f"environment.id: 'own_environment:Own-v0' fails: {what}")
    assert f", at own_environment.py:{LINE + line} in " in message
    assert ("step(action) must return (observation, " in message) == (changes.get("step") == FOUR)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"made": "1 / 0"}, f"{LINE - 6} in __init__"),
        ({"options": ", max_episode_steps=1 / 0"}, f"{LINE + 4} in <module>"),
    ],
)
def test_mistakes_of_a_constructor_and_a_module_have_their_line(
    changes: dict[str, str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = config_error(lambda: check_environment(own(tmp_path, monkeypatch, **changes)))
    assert f"division by zero, at own_environment.py:{line}" in message


class Odd(Rooms):
    """Gives another observation than its space has."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(size=10)
        self._changes = changes

    def _observe(self) -> Any:
        obs = super()._observe() | self._changes
        return {name: part for name, part in obs.items() if part is not None}


register("Odd-v0", Odd)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"room": None}, " that cannot be used: an observation without the part 'room'"),
        ({"room": 5}, " of room that is 5, its observation_space is Discrete(2, start=3)"),
        ({"camera": [1]}, " of camera of shape [1], its observation_space has [10, 10, 1]"),
        ({"arm": {"joints": [math.nan] * 5}}, " of arm.joints with nan, allowed is a magnitude of 1e+15"),
        ({"arm": 3}, " that cannot be used: an observation without the part 'arm.joints'"),
    ],
)
def test_a_part_that_is_not_in_its_space_is_named(changes: dict[str, Any], message: str) -> None:
    line = config_error(lambda: check_environment(run_config(id="Odd-v0", kwargs=json.dumps(changes))))
    assert line.startswith(f"environment.id: 'Odd-v0' fails: reset gave an observation{message}")


class Sloppy(Clock):
    """Works, though gymnasium would warn of all that it does."""

    def reset(self, seed: Any = 3, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, _, info = super().step(action)
        return [float(obs[0]) + 7], np.array([[reward]]), np.array([int(terminated)]), None, info


register("Sloppy-v0", Sloppy, checked=True, length=4)
IMAGES = {"lengths": [2], "shape": [10, 10, 4], "dtype": "uint8", "first_action": 3}
AIM = f"{MODULE}:Aim-v0"  # raises if an action has another type or shape or is out of its bounds


@dataclass(frozen=True)
class ForBoxes(AlgorithmConfig):
    """The settings of an algorithm of one's own."""

    actions = "Box"


@dataclass(frozen=True)
class ForBoth(AlgorithmConfig):
    """Settings that say nothing of actions."""


PENDULUM, OWN = "Pendulum-v1", "own:Own"


@pytest.mark.parametrize(
    ("name", "options", "algorithm"),
    [
        (f"{__name__}:Sloppy-v0", {}, ForBoth(OWN)),
        ("CartPole-v1", {}, AcerConfig()),
        ("CartPole-v1", {"wrappers": ("apex_acer.wrappers:hide_velocities",)}, AcerConfig()),
        (COUNTDOWN, {"kwargs": IMAGES}, AcerConfig()),
        (AIM, {}, SacConfig()),
        (AIM, {"kwargs": {"low": -2.0, "high": 1.0, "dtype": "float64"}}, ForBoxes(OWN)),
        (PENDULUM, {}, ForBoth(OWN)),
    ],
)
def test_what_works_is_taken_without_a_word(
    name: str,
    options: dict[str, Any],
    algorithm: AlgorithmConfig,
    capfd: pytest.CaptureFixture[str],
    recwarn: pytest.WarningsRecorder,
) -> None:
    config = dataclasses.replace(run_config(id=name, **options), algorithm=algorithm)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        spec, (understood,) = check_environment(config)
    assert understood == spec.describe()
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list


def told(*infos: dict[str, Any], given: bool | None = None) -> RunConfig:
    return run_config(id=f"{MODULE}:Told-v0", kwargs=json.dumps({"infos": infos}), action_masks=given)


@pytest.mark.parametrize(
    ("infos", "given", "found", "note"),
    [
        ([{"action_mask": [0, 1]}], None, True, "no other is taken"),
        ([*[{}] * 10, {"action_mask": [1, 0]}], None, True, "no other is taken"),
        ([{}, {}], None, False, ""),
        ([{}, {}], True, True, "no other is taken"),
        ([{}, {"action_mask": [1, 0]}], False, False, "is ignored: environment.action_masks is False"),
    ],
)
def test_masks_are_found_when_they_come_with_steps_only_and_a_setting_is_kept(
    infos: list[dict[str, Any]], given: bool | None, found: bool, note: str
) -> None:
    config = told(*infos, given=given)
    checked = check_environment(config)
    assert checked.spec.masks_in_info is checked.spec.has_masks is found
    assert note in "".join(checked.notes[1:])
    assert len(checked.notes) == 1 + bool(note)
    assert make_environments(config.environment, 2, training=True, found=checked.spec).spec == checked.spec


LOCK = "hasattr(self, 'lock') or setattr(self, 'lock', os.mkdir('lock'))"  # which is removed by `close`


@pytest.mark.parametrize(
    "changes", [{"made": LOCK}, {"reset": f"[{LOCK}, self._obs(), {{}}][1:]"}], ids=["made", "reset"]
)
def test_an_environment_of_which_only_one_can_live_is_told_how(
    changes: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = own(tmp_path, monkeypatch, **changes)
    message = config_error(lambda: check_environment(run))
    assert "FileExistsError: " in message
    assert message.endswith("give --actors 1 --actors.environments 1 --evaluation.every 0")
    run = dataclasses.replace(run, actors=dataclasses.replace(run.actors, count=1, environments=1))
    assert "only one can live" in config_error(lambda: check_environment(run))
    check_environment(dataclasses.replace(run, evaluation=dataclasses.replace(run.evaluation, every=0)))
    assert not (tmp_path / "lock").exists()


@pytest.mark.parametrize(
    ("name", "kwargs", "note"),
    [
        (COUNTDOWN, {"shape": [4, 8, 8, 3], "dtype": "uint8"}, "are vectors of 768 numbers, not images; for images"),
        (f"{MODULE}:ManyRooms-v0", {}, "observations of 20,000 choices are one-hot, so each has 20,000 numbers"),
    ],
)
def test_what_may_not_be_meant_is_said(name: str, kwargs: dict[str, Any], note: str) -> None:
    (_, said) = check_environment(run_config(id=name, kwargs=kwargs)).notes
    assert note in said


def test_global_generators_are_left_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = own(tmp_path, monkeypatch, step="self._obs(), np.random.uniform() + random.random(), False, False, {}")
    before = random.getstate(), repr(np.random.get_state())
    check_environment(config)
    assert (random.getstate(), repr(np.random.get_state())) == before


def test_ctrl_c_ends_the_wait_for_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = own(tmp_path, monkeypatch, reset="open('waits', 'w').close() or time.sleep(60)")
    command = [sys.executable, "-m", "apex_acer", "train", "cartpole", "--environment.id", config.environment.id]
    program = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not (tmp_path / "waits").exists() and time.monotonic() < until:
        time.sleep(0.01)
    program.send_signal(signal.SIGINT)
    _, said = program.communicate(timeout=10)
    assert (program.returncode, said) == (130, "apex-acer: interrupted\n")


BINS = "; or give --environment.wrappers apex_acer.wrappers:DiscreteActions"


@pytest.mark.parametrize(
    ("name", "kind", "algorithm", "hint"),
    [
        (PENDULUM, "Box", ApexDqnConfig(), BINS),
        (f"{MODULE}:WideBoxAction-v0", "Box", AcerConfig(), ""),
        ("CartPole-v1", "Discrete", ForBoxes(name=OWN), ""),
    ],
)
def test_an_algorithm_for_other_actions_is_told_which_fit(
    name: str, kind: str, algorithm: AlgorithmConfig, hint: str
) -> None:
    config = dataclasses.replace(run_config(id=name), algorithm=algorithm)
    fitting = sorted(key for key, settings in settings_classes().items() if settings.actions in ("", kind))
    allowed = f"{name} has {kind} actions, for which there are {', '.join(fitting)}{hint}"
    message = config_error(lambda: check_environment(config))
    assert message == f"algorithm.name: {algorithm.name!r} is not allowed; {allowed}"


def test_every_way_to_begin_asks_whether_they_fit(
    tmp_path: Path, finished_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, folder = tmp_path / "run.toml", tmp_path / "finished"
    run.write_text(dump_run(tiny_run(tmp_path / "out", environment__id=PENDULUM)))
    shutil.copytree(finished_run, folder)
    pendulum, weights = run_config(id=PENDULUM).environment, folder / "weights.safetensors"
    config = load_run(folder)
    (folder / "config.toml").write_text(dump_run(dataclasses.replace(config, environment=pendulum)))
    tensors, metadata = read(weights)
    metadata["config"]["environment"]["id"] = PENDULUM
    write(weights, pack(tensors, metadata | {"spec": dataclasses.asdict(environment_spec(pendulum))}))
    commands = [
        f"train {run} --engine local",
        f"resume {folder} --steps 100000",
        f"plan {run}",
        f"sweep {run} --out {tmp_path / 'sweep'}",
        f"evaluate {weights}",
    ]
    for command in commands:
        assert main(command.split()) == 2, command
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == said.err.count(f"is not allowed; {PENDULUM} has Box actions") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"run.toml", "finished"}
    (problem,) = [finding for finding in check_run(str(run), lambda line: None) if finding.level == "problem"]
    assert f"{PENDULUM} has Box actions" in problem.text
