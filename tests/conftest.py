"""What several test modules share."""

from __future__ import annotations

import contextlib
import itertools
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from apex_acer.actor.policy import Policy
from apex_acer.algorithms.acer.acer import Acer
from apex_acer.algorithms.algorithm import LossOutput
from apex_acer.algorithms.samples import Sequences
from apex_acer.cli import main
from apex_acer.config import ConfigError, EnvironmentConfig, RunConfig
from apex_acer.environments.vector import Environments, make_environments
from apex_acer.learner.learner import Learner
from apex_acer.manager.manager import train
from apex_acer.protocol.unroll import ARRAY_FIELDS, Unroll
from tests.runs import CARTPOLE, RUN_ID, MakeLearner, tiny_run

COUNTDOWN = "tests.environments_for_tests:Countdown-v0"


@pytest.fixture(autouse=True, scope="session")
def _interruptible() -> None:
    """A shell has what it starts in the background ignore SIGINT, and with it every program that a test starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a real run with evaluations, which nobody may change."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    train(tiny_run(folder, evaluation__every=250, logging__every_seconds=0.02, seed=3))
    return folder


@pytest.fixture
def make_learner(tmp_path: Path) -> Iterator[MakeLearner]:
    """Makes learners for CartPole, each with a folder of its own; they are finished after the test."""
    learners: list[Learner] = []
    numbers = itertools.count()

    def make(config: RunConfig) -> Learner:
        folder = tmp_path / f"run_{next(numbers)}"
        folder.mkdir()
        learners.append(Learner(config, CARTPOLE, folder, RUN_ID, time.monotonic()))
        return learners[-1]

    yield make
    for learner in learners:
        with contextlib.suppress(ValueError):  # finished by the test
            learner.finish()


@pytest.fixture
def trained_on(monkeypatch: pytest.MonkeyPatch) -> list[Sequences]:
    """Every batch that was learned from, in order."""
    batches: list[Sequences] = []
    loss = Acer.loss

    def spy(self: Acer, samples: Sequences) -> LossOutput:
        batches.append(samples)
        return loss(self, samples)

    monkeypatch.setattr(Acer, "loss", spy)
    return batches


Refused = Callable[..., str]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command that must refuse its input with one line, nothing beside it, and code 2; the line."""

    def run(*arguments: str) -> str:
        capsys.readouterr()
        code, (out, error) = main(arguments), capsys.readouterr()
        assert (code, out, error.count("\n")) == (2, "", 1), f"{arguments}: {code} {out} {error}"
        assert error.startswith("apex-acer: ")
        return error

    return run


def assert_refused(refused: Refused, table: dict[str, str]) -> None:
    """Each key of `table`, a command, is refused in a line that holds the parts that ` … ` separates."""
    wrong = {}
    for command, parts in table.items():
        line = refused(*command.split())
        if missing := [part for part in parts.split(" … ") if part not in line]:
            wrong[command] = f"{missing} not in {line!r}"
    assert not wrong, "\n".join(f"{command}: {text}" for command, text in wrong.items())


def config_error(call: Callable[[], Any]) -> str:
    """The message of the `ConfigError` that `call` raises, checked to be one line."""
    with pytest.raises(ConfigError) as caught:
        call()
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


def play(
    config: RunConfig, count: int, *, training: bool = True, sharpness: float = 1.0
) -> tuple[Environments, Policy]:
    """Environments and a fresh policy for them, seeded; the logits of one that has any are scaled by `sharpness`."""
    environments = make_environments(config.environment, count, training=training)
    torch.manual_seed(config.seed)
    policy = Policy(config, environments.spec)
    if sharpness != 1.0:
        logits: Any = policy.network.pi_logits
        with torch.no_grad():
            logits.weight.mul_(sharpness)
    return environments, policy


def run_config(**environment: Any) -> RunConfig:
    """The defaults, in this environment, and the serial engine, with which a check has no process of its own."""
    return RunConfig(engine="serial", environment=EnvironmentConfig(**environment))


def joined(unrolls: list[Unroll], name: str) -> np.ndarray:
    """One field of consecutive unrolls over their whole time; of planes, the lead-in only once."""
    parts = [getattr(unroll, name) for unroll in unrolls]
    if name not in ("obs", "episode_step"):
        return np.concatenate(parts)
    length = len(unrolls[0].action)
    return np.concatenate([parts[0], *(part[-length:] for part in parts[1:])])


def assert_equal_unrolls(one: Unroll, other: Unroll) -> None:
    for name in ARRAY_FIELDS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    for part in ("extras", "state"):
        assert getattr(one, part).keys() == getattr(other, part).keys()
        for name, array in getattr(one, part).items():
            np.testing.assert_array_equal(array, getattr(other, part)[name], err_msg=name)
