from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from apex_acer.actor.policy import load_policy
from apex_acer.environments.vector import Environments, Step
from apex_acer.learner.batch_queue import BatchQueue
from apex_acer.manager.manager import RunFailed, TrainResult, resume, train
from apex_acer.networks.weights import read
from apex_acer.protocol.unroll import Unroll
from tests import on_policy
from tests.continuous import ALGORITHMS, settings_of
from tests.runs import tiny_run


def run(folder: Path, **changes: Any) -> TrainResult:
    return train(tiny_run(folder, engine="serial", **changes))


def test_one_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    files = []
    for number, seed in enumerate((3, 3, 4)):
        folder = tmp_path / str(number)
        result = run(folder, seed=seed, stop__env_steps=1500, evaluation__every=500)
        assert result.eval_return is not None
        files.append([(folder / name).read_bytes() for name in ("weights.safetensors", "best.safetensors")])
    assert files[0] == files[1]
    assert files[0][0] != files[2][0]
    assert files[0][1] != files[2][1]


def test_result_says_what_happened(tmp_path: Path) -> None:
    result = run(tmp_path, stop__env_steps=600)
    assert result.reason == "env_steps"
    assert result.exit_code == 0
    assert 600 <= result.env_steps < 600 + 2 * 20
    assert result.updates > 20
    assert result.wall_s > 0
    assert 0 < result.startup_s < 60
    assert load_policy(result.weights).metadata["env_steps"] == result.env_steps


def test_ends_when_its_minutes_are_over(tmp_path: Path) -> None:
    result = run(tmp_path, stop__env_steps=10**9, stop__minutes=0.5 / 60)
    assert result.reason == "minutes"
    assert 0.5 <= result.wall_s < 3


def test_ends_at_the_return_asked_for(tmp_path: Path) -> None:
    result = run(tmp_path, stop__env_steps=10**9, evaluation__every=200, stop__at_return=5.0)
    assert result.reason == "at_return"
    assert result.eval_return is not None
    assert result.eval_return >= 5.0
    assert Path(result.weights).read_bytes() == (tmp_path / "best.safetensors").read_bytes()
    assert load_policy(result.weights).metadata["env_steps"] < 240


class Steps:
    """Counts steps by the number of environments that make them, and calls a function at one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: Counter[int] = Counter()
        self._at: tuple[int, int] = 0, 0
        self._original = Environments.step
        monkeypatch.setattr(Environments, "step", lambda environments, action: self._step(environments, action))

    def call_at(self, num: int, count: int, call: Callable[[], object]) -> None:
        self._at, self._call = (num, count), call

    def _step(self, environments: Environments, action: Any) -> Step:
        self.counts[environments.num] += 1
        if (environments.num, self.counts[environments.num]) == self._at:
            self._call()
        return self._original(environments, action)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


@pytest.fixture
def unclosed(monkeypatch: pytest.MonkeyPatch) -> set[Environments]:
    """The environments that were reset and not closed."""
    unclosed: set[Environments] = set()
    reset, close = Environments.reset, Environments.close
    monkeypatch.setattr(Environments, "reset", lambda self, seed: (unclosed.add(self), reset(self, seed))[1])
    monkeypatch.setattr(Environments, "close", lambda self: (unclosed.discard(self), close(self))[1])
    return unclosed


ENDLESS = {"stop__env_steps": 10**9, "actors__count": 1, "evaluation__every": 200, "evaluation__environments": 3}


@pytest.mark.parametrize("during", [4, 3], ids=["an unroll", "an evaluation"])
def test_a_signal_saves_and_closes_everything_at_once(
    tmp_path: Path, steps: Steps, unclosed: set[Environments], during: int
) -> None:
    steps.call_at(during, 105, lambda: os.kill(os.getpid(), signal.SIGINT))
    result = run(tmp_path, **ENDLESS, evaluation__episodes=1000)
    assert steps.counts[during] == 105
    assert result.reason == "SIGINT"
    assert load_policy(result.weights).metadata["env_steps"] == result.env_steps > 0
    assert {each.num for each in unclosed} <= {2}  # the check before the run closes its own in another way


def test_an_environment_that_exits_fails_the_run_which_saves(
    tmp_path: Path, steps: Steps, unclosed: set[Environments]
) -> None:
    steps.call_at(4, 105, lambda: sys.exit(0))
    with pytest.raises(RunFailed, match="SystemExit: 0; this engine restarts no process"):
        run(tmp_path, **ENDLESS)
    assert load_policy(str(tmp_path / "weights.safetensors")).metadata["env_steps"] > 0
    assert {each.num for each in unclosed} <= {2}  # the check before the run closes its own in another way


OPTIONS = {
    "normalising": {"network__normalise": True, "algorithm__normalise_rewards": True},
    "recurrent": {"network__lstm": 8, "algorithm__burn_in": 2},
    "much at once": {
        "network__normalise": True,
        "network__lstm": 8,
        "algorithm__burn_in": 2,
        "algorithm__terminal_penalty": 0.5,
    },
}


def each(runs: dict[str, dict[str, Any]], *fast: str) -> pytest.MarkDecorator:
    """The changes of all `runs`, of which only the `fast` ones are part of every test: those that have most at once."""
    marks = {name: [] if name in fast else [pytest.mark.slow] for name in runs}
    return pytest.mark.parametrize("changes", [pytest.param(runs[name], id=name, marks=marks[name]) for name in runs])


@each(OPTIONS, "much at once")
def test_a_run_trains_and_another_goes_on_from_its_weights(tmp_path: Path, changes: dict[str, Any]) -> None:
    first = run(tmp_path / "first", stop__env_steps=500, **changes)
    more = run(tmp_path / "more", stop__env_steps=500, load=first.weights, **changes)
    assert min(first.updates, more.updates) > 20
    before, after = (read(result.weights)[0] for result in (first, more))
    assert before.keys() == after.keys()
    for name in before:
        assert bool((before[name] != after[name]).any()), name
        if name.endswith("count"):  # of what was seen: the second run sees about as much again
            assert 1.7 < after[name] / before[name] < 2.3
    policy = load_policy(more.weights)
    assert torch.isfinite(policy.network(torch.zeros(1, 4)).q_values).all()


# ── a run that is stopped at a checkpoint and resumed ──

EXACT = {"checkpoint__every": 200, "checkpoint__replay": True, "evaluation__every": 150, "algorithm__replay_ratio": 3.0}
APEX_DQN = {
    "algorithm__name": "apex_dqn",
    "algorithm__target_every": 7,  # not at checkpoints
    "replay__sampling": "prioritized",
    "replay__capacity": 300,  # it wraps around
    "optimizer__name": "adam",
    "learner__batch_size": 16,
    "network__normalise": True,
}
RARE = {"algorithm__replay_ratio": 3.0}
EPISODES = {"algorithm__unroll_length": 15}  # of CartPole, of which some are cut
RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "adam": {"optimizer__name": "adam", "optimizer__eps": 1e-8},
    "small replay": {"replay__capacity": 300, "replay__start": 200},  # it wraps around
    "apex_dqn": APEX_DQN,
    "apex_dqn, uniform": {**APEX_DQN, "replay__sampling": "uniform", "algorithm__value_rescaling": True},
    "r2d2": {**APEX_DQN, "algorithm__name": "r2d2", "algorithm__burn_in": 3, "network__lstm": 8},
    "prioritized": {"replay__sampling": "prioritized"},
    "schedules": {
        "optimizer__schedule": "linear",
        "replay__sampling": "prioritized",
        "replay__importance_exponent_final": 1.0,
    },
    **OPTIONS,
    **{name: settings_of(name) | {"replay__capacity": 300, "replay__start": 100, **RARE} for name in ALGORITHMS},
    **{f"{name}, discrete": {**changes, **EPISODES} for name, changes in on_policy.ALGORITHMS.items()},
    "ppo_lstm, normalising": {**on_policy.ALGORITHMS["ppo_lstm"], **OPTIONS["normalising"]},
    "ppo, curious": {**on_policy.ALGORITHMS["ppo"], **OPTIONS["normalising"], "algorithm__curiosity": 0.1},
    "reinforce, normalising": {**on_policy.ALGORITHMS["reinforce"], **OPTIONS["normalising"], **EPISODES},
    "three unrolls a batch": {**on_policy.ALGORITHMS["a2c"], "learner__batch_size": 12, "actors__count": 5},
}

FAST_ON_POLICY = "impala", "ppo, curious", "trpo, discrete", "three unrolls a batch"


def scores(folder: Path) -> list[tuple[int, float]]:
    """What was evaluated when."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(row["env_steps"], row["eval_return"]) for row in rows if row["source"] == "evaluator"]


def assert_equal_files(name: str, *folders: Path) -> None:
    one, other = ((folder / name).read_bytes() for folder in folders)
    assert one == other, name  # before pytest explains megabytes


@each(RUNS, "adam", "apex_dqn", "r2d2", "schedules", "sac", "td3", "continuous_acer", *FAST_ON_POLICY)
def test_a_run_that_was_stopped_and_resumed_twice_is_the_unbroken_one(tmp_path: Path, changes: dict[str, Any]) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    changes = {**EXACT, "schedule_steps": 1000, **changes}
    expected = run(whole, stop__env_steps=1000, **changes)
    run(parts, stop__env_steps=400, **changes)
    before = scores(parts)
    second = resume(parts, {"env_steps": 600})
    third = resume(parts, {"env_steps": 1000})
    assert second.updates < third.updates == expected.updates
    assert third.env_steps == expected.env_steps
    assert_equal_files("weights.safetensors", whole, parts)
    assert scores(parts) == scores(whole)
    assert len(scores(parts)) > len(before) > 0
    (best, _), (expected_best, _) = (read(folder / "best.safetensors") for folder in (parts, whole))
    assert all(torch.equal(best[name], tensor) for name, tensor in expected_best.items())


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The observations of every unroll that was put into replay."""
    unrolls: list[bytes] = []
    insert = BatchQueue.insert

    def spy(queue: BatchQueue, unroll: Unroll, weights_version: int) -> None:
        unrolls.append(unroll.obs.tobytes())
        insert(queue, unroll, weights_version)

    monkeypatch.setattr(BatchQueue, "insert", spy)
    return unrolls


def test_no_experience_is_collected_twice_while_nothing_is_learned_yet(tmp_path: Path, collected: list[bytes]) -> None:
    """Actors begin again at each checkpoint and with each resume, all of that before the first update."""
    changes = {**APEX_DQN, "replay__capacity": 2000, "replay__start": 1500, "checkpoint__every": 200}
    first = run(tmp_path, stop__env_steps=500, **changes)
    for total in (700, 900):
        result = resume(tmp_path, {"env_steps": total})
    assert first.updates == result.updates == 0
    assert len(set(collected)) == len(collected) > 40


def breaking(number: int) -> Callable[[BatchQueue, Unroll, int], None]:
    """In place of `BatchQueue.insert`: raises at the `number`-th unroll."""
    insert, calls = BatchQueue.insert, itertools.count(1)

    def sometimes(queue: BatchQueue, unroll: Unroll, weights_version: int) -> None:
        if next(calls) == number:
            raise ZeroDivisionError("it broke")
        insert(queue, unroll, weights_version)

    return sometimes


BROKEN = {
    "acer": {},
    "sac": settings_of("sac") | RARE,
    "apex_dqn": {**APEX_DQN, "replay__importance_exponent_final": 1.0},
}


@each(BROKEN, "acer")
def test_a_run_that_broke_and_was_resumed_is_the_unbroken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    """Its total stays, and with it what moves towards the end of a run; what it did since the checkpoint is done again."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    changes = EXACT | changes | {"optimizer__schedule": "linear", "stop__env_steps": 1000}
    expected = run(whole, **changes)
    monkeypatch.setattr(BatchQueue, "insert", breaking(26))  # of 20 steps or fewer
    with pytest.raises(RunFailed, match="it broke"):
        run(parts, **changes)
    monkeypatch.undo()
    monkeypatch.setattr(BatchQueue, "insert", breaking(17))
    with pytest.raises(RunFailed, match="it broke"):
        resume(parts)
    monkeypatch.undo()
    result = resume(parts)
    assert result.updates == expected.updates
    assert scores(parts) == scores(whole)
    for name in ("weights.safetensors", "best.safetensors"):
        assert_equal_files(name, whole, parts)


def test_a_run_goes_on_without_its_replay_too(tmp_path: Path) -> None:
    changes = EXACT | {"checkpoint__replay": False}
    first = run(tmp_path, stop__env_steps=400, **changes)
    more = resume(tmp_path, {"env_steps": 800})
    assert 800 <= more.env_steps < 840
    assert more.updates > first.updates + 20
    assert more.wall_s > first.wall_s
    assert load_policy(more.weights).metadata["env_steps"] == more.env_steps
