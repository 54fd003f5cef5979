from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from apex_acer.actor.policy import load_policy
from apex_acer.environments.vector import Environments, Step
from apex_acer.learner.batch_queue import BatchQueue
from apex_acer.manager.manager import RunFailed, resume, train
from apex_acer.manager.result import TrainResult
from apex_acer.networks.weights import read
from apex_acer.protocol.unroll import Unroll
from tests import on_policy
from tests.continuous import AIM, settings_of
from tests.runs import tiny_run


def run(folder: Path, **changes: Any) -> TrainResult:
    return train(tiny_run(folder, engine="serial", **changes))


def test_one_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    files = []
    for number, seed in enumerate((3, 3, 4)):
        folder = tmp_path / str(number)
        result = run(folder, seed=seed, stop__env_steps=500, evaluation__every=200)
        assert result.eval_return is not None
        files.append([(folder / name).read_bytes() for name in ("weights.safetensors", "best.safetensors")])
    assert files[0] == files[1]
    assert files[0][0] != files[2][0]
    assert files[0][1] != files[2][1]


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

    def noted_reset(self: Environments, seed: int) -> Any:
        unclosed.add(self)
        return reset(self, seed)

    def noted_close(self: Environments) -> None:
        unclosed.discard(self)
        close(self)

    monkeypatch.setattr(Environments, "reset", noted_reset)
    monkeypatch.setattr(Environments, "close", noted_close)
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


def test_a_second_signal_ends_a_step_that_hangs(tmp_path: Path, steps: Steps) -> None:
    def press_twice() -> None:
        for _ in range(2):
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGINT)

    def hang() -> None:
        threading.Thread(target=press_twice).start()
        time.sleep(60)

    steps.call_at(4, 105, hang)
    began_at = time.monotonic()
    result = run(tmp_path, **ENDLESS)
    assert time.monotonic() - began_at < 30
    assert (result.reason, result.weights) == ("SIGINT", "")


def test_an_environment_that_exits_fails_the_run_which_saves(
    tmp_path: Path, steps: Steps, unclosed: set[Environments]
) -> None:
    steps.call_at(4, 105, lambda: sys.exit(0))
    with pytest.raises(RunFailed, match="SystemExit: 0; this engine restarts no process"):
        run(tmp_path, **ENDLESS)
    assert load_policy(str(tmp_path / "weights.safetensors")).metadata["env_steps"] > 0
    assert {each.num for each in unclosed} <= {2}  # the check before the run closes its own in another way


EVERYTHING = {
    "network__normalise": True,
    "network__lstm": 8,
    "algorithm__normalise_rewards": True,
    "algorithm__burn_in": 2,
    "algorithm__terminal_penalty": 0.5,
}
"""What may be switched on."""


def test_a_run_trains_and_another_goes_on_from_its_weights(tmp_path: Path) -> None:
    first = run(tmp_path / "first", stop__env_steps=500, **EVERYTHING)
    more = run(tmp_path / "more", stop__env_steps=500, load=first.weights, **EVERYTHING)
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

EXACT = {"checkpoint__every": 100, "checkpoint__replay": True, "evaluation__every": 80, "algorithm__replay_ratio": 3.0}
APEX_DQN = {
    "algorithm__name": "apex_dqn",
    "algorithm__target_every": 7,  # not at checkpoints
    "replay__sampling": "prioritized",
    "replay__capacity": 200,  # it wraps around
    "optimizer__name": "adam",
    "learner__batch_size": 16,
    "network__normalise": True,
}
CONTINUOUS = {"replay__capacity": 200, "replay__start": 100, "algorithm__replay_ratio": 3.0}
PQN = {
    "algorithm__name": "pqn",
    "algorithm__minibatches": 2,
    "algorithm__epsilon_fraction": 0.8,  # it falls on both sides of the checkpoint
    "learner__batch_size": 8,
    "network__layer_norm": True,
    "network__lstm": 8,
    "optimizer__name": "adam",
    "optimizer__schedule": "linear",
}
CEM = {
    "algorithm__name": "cem",
    "algorithm__episodes_per_member": 2,
    "algorithm__elite_fraction": 0.5,
    "algorithm__extra_generations": 20,  # more than there are, so that the noise falls on both sides of the checkpoint
    "learner__batch_size": 12,
}
PICTURES = {
    "environment__kwargs": {"render_mode": "rgb_array"},
    "environment__wrappers": ("tests.environments_for_tests:small_pixels",),
    "environment__stack": 2,
    "replay__compress": True,
}
SHIFTED = {**CONTINUOUS, **PICTURES, "algorithm__image_shift": 1, "network__normalise": True}
UNREAL = {
    "algorithm__name": "unreal",
    "algorithm__replay_ratio": 1.0,
    "learner__batch_size": 8,
    "network__lstm": 8,
    "replay__capacity": 200,  # it wraps around
}
EPISODES = {"algorithm__unroll_length": 15}  # of CartPole, of which some are cut
NORMALISING = {"network__normalise": True, "algorithm__normalise_rewards": True}
RUNS: dict[str, dict[str, Any]] = {
    "acer": EVERYTHING,
    "acer, schedules": {
        "optimizer__name": "adam",
        "optimizer__schedule": "linear",
        "replay__sampling": "prioritized",
        "replay__importance_exponent_final": 1.0,
    },
    "apex_dqn": APEX_DQN,
    "apex_dqn, pictures": {
        **APEX_DQN,
        **PICTURES,
        "environment__id": AIM,
        "environment__wrappers": ("apex_acer.wrappers:DiscreteActions", "tests.environments_for_tests:small_pixels"),
    },
    "r2d2": {**APEX_DQN, "algorithm__name": "r2d2", "algorithm__burn_in": 3, "network__lstm": 8},
    "td3": {**settings_of("td3"), **CONTINUOUS, "algorithm__noise": "ornstein_uhlenbeck"},
    "td3, shifted pictures": {**settings_of("td3"), **SHIFTED},
    "sac": settings_of("sac") | CONTINUOUS,
    "crossq": settings_of("crossq") | CONTINUOUS,
    "sac, shifted pictures": settings_of("sac") | SHIFTED,
    "continuous_acer": settings_of("continuous_acer") | CONTINUOUS,
    "a2c, three unrolls a batch": {**on_policy.ALGORITHMS["a2c"], "learner__batch_size": 12, "actors__count": 5},
    "impala": {**on_policy.ALGORITHMS["impala"], **EPISODES},
    "reinforce": {**on_policy.ALGORITHMS["reinforce"], **NORMALISING, **EPISODES},
    "ppo": {**on_policy.ALGORITHMS["ppo_lstm"], **NORMALISING, "algorithm__curiosity": 0.1},
    "trpo": {**on_policy.ALGORITHMS["trpo"], **EPISODES},
    "pqn": {**PQN, **NORMALISING},
    "cem": {**CEM, "network__normalise": True, **EPISODES},
    "unreal": {
        **UNREAL,
        **NORMALISING,
        "algorithm__pixel_control": 0.0,
        "algorithm__curiosity": 0.1,
        "replay__sampling": "prioritized",
    },
    "unreal, pictures": {
        **UNREAL,
        "environment__id": "tests.learning.catch:Catch-v0",
        "environment__stack": 2,
        "replay__sampling": "rewarded",
    },
}


def scores(folder: Path) -> list[tuple[int, float]]:
    """What was evaluated when."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(row["env_steps"], row["eval_return"]) for row in rows if row["source"] == "evaluator"]


def assert_equal_files(name: str, *folders: Path) -> None:
    one, other = ((folder / name).read_bytes() for folder in folders)
    assert one == other, name  # before pytest explains megabytes


@pytest.mark.parametrize("changes", RUNS.values(), ids=RUNS)
def test_a_run_that_was_stopped_and_resumed_is_the_unbroken_one(tmp_path: Path, changes: dict[str, Any]) -> None:
    """The run was stopped at a checkpoint, as the unbroken one also made."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    changes = {**EXACT, "schedule_steps": 400, **changes}
    expected = run(whole, stop__env_steps=400, **changes)
    run(parts, stop__env_steps=200, **changes)
    before = scores(parts)
    result = resume(parts, {"env_steps": 400})
    assert (result.env_steps, result.updates) == (expected.env_steps, expected.updates)
    assert result.updates > 0
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
    changes = {**APEX_DQN, "replay__capacity": 2000, "replay__start": 1500, "checkpoint__every": 100}
    first = run(tmp_path, stop__env_steps=250, **changes)
    for total in (350, 450):
        result = resume(tmp_path, {"env_steps": total})
    assert first.updates == result.updates == 0
    assert len(set(collected)) == len(collected) > 20


def breaking(number: int) -> Callable[[BatchQueue, Unroll, int], None]:
    """In place of `BatchQueue.insert`: raises at the `number`-th unroll."""
    insert, calls = BatchQueue.insert, itertools.count(1)

    def sometimes(queue: BatchQueue, unroll: Unroll, weights_version: int) -> None:
        if next(calls) == number:
            raise ZeroDivisionError("it broke")
        insert(queue, unroll, weights_version)

    return sometimes


def test_a_run_that_broke_and_was_resumed_is_the_unbroken_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its total stays, and with it what moves towards the end of a run; what it did since the checkpoint is done again."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    changes = EXACT | {"optimizer__schedule": "linear", "stop__env_steps": 500}
    expected = run(whole, **changes)
    for number in (13, 9):  # of 20 steps or fewer
        monkeypatch.setattr(BatchQueue, "insert", breaking(number))
        with pytest.raises(RunFailed, match="it broke"):
            resume(parts) if parts.exists() else run(parts, **changes)
        monkeypatch.undo()
    result = resume(parts)
    assert result.updates == expected.updates
    assert scores(parts) == scores(whole)
    for name in ("weights.safetensors", "best.safetensors"):
        assert_equal_files(name, whole, parts)
