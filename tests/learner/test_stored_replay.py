"""Runs that start from a replay memory that is there already."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from apex_acer import resume, train, write_unrolls
from apex_acer.config import RunConfig
from apex_acer.learner.batch_queue import BatchQueue
from apex_acer.learner.parts import make_batch_queue
from apex_acer.learner.stored_replay import load_replay
from apex_acer.protocol.unroll import ARRAY_FIELDS, PRIORITY
from apex_acer.replay.storage import Storage
from apex_acer.storage import checkpoint
from tests.boards import lines
from tests.conftest import assert_equal_unrolls, config_error
from tests.runs import CARTPOLE, made_up_unroll, tiny_layout, tiny_run

APEX_DQN: dict[str, Any] = {"algorithm__name": "apex_dqn", "replay__sampling": "prioritized"}
R2D2: dict[str, Any] = {
    "algorithm__name": "r2d2",
    "algorithm__burn_in": 3,
    "network__lstm": 4,
    "replay__sampling": "prioritized",
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with a replay that has wrapped around."""
    folder = tmp_path_factory.mktemp("source")
    train(tiny_run(folder, checkpoint__replay=True, replay__capacity=250, stop__env_steps=400, **R2D2))
    return folder


def empty(config: RunConfig) -> BatchQueue:
    return make_batch_queue(config, tiny_layout(config), torch.device("cpu"))


def loaded(folder: Path, **changes: Any) -> Storage:
    config = tiny_run(**changes)
    queue = empty(config)
    load_replay(str(folder), config, CARTPOLE, queue)
    assert not queue.num_fresh
    return queue.storage


def test_a_run_learns_at_once_from_another_s_replay(source: Path, tmp_path: Path) -> None:
    """What was loaded is no step of this run, but counts for `replay.start`; the replay ratio stays what it is."""
    settings = {"stop__env_steps": 400, "replay__start": 200, "algorithm__replay_ratio": 2.0} | R2D2
    with_it = train(tiny_run(tmp_path / "with", replay__load=str(source), **settings))
    without = train(tiny_run(tmp_path / "without", **settings))
    assert with_it.env_steps == pytest.approx(without.env_steps, abs=20)
    assert with_it.updates > 1.4 * without.updates
    last = [row for row in lines(tmp_path / "with") if row["source"] == "learner"][-1]
    held = loaded(source, **R2D2).num_steps
    assert 180 < held <= 250
    assert last["replay_steps"] == held + with_it.env_steps
    assert last["replay_ratio"] == pytest.approx(2.0, rel=0.15)


def test_such_a_run_is_resumed_exactly_without_the_folder(source: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(source, tmp_path / "source")
    settings = {"replay__load": str(folder), "checkpoint__every": 200, "evaluation__every": 150} | R2D2
    train(tiny_run(tmp_path / "whole", stop__env_steps=300, schedule_steps=300, **settings))
    train(tiny_run(tmp_path / "parts", stop__env_steps=200, schedule_steps=300, **settings))
    shutil.rmtree(folder)
    assert resume(tmp_path / "parts", {"env_steps": 300}).env_steps >= 300
    one, other = (tmp_path / name / "weights.safetensors" for name in ("whole", "parts"))
    assert one.read_bytes() == other.read_bytes()


def test_the_newest_of_a_ring_are_loaded_in_the_order_in_which_it_was_filled(
    tmp_path: Path,
) -> None:
    train(tiny_run(tmp_path, checkpoint__replay=True, replay__capacity=115, stop__env_steps=200))
    saved = checkpoint.load(checkpoint.newest(tmp_path) or Path())
    held = saved.state["replay"]
    assert held["sequences"] == 23 > held["oldest"] > 0
    obs = saved.view("replay.obs", (23, 6, 4), "float32")
    for capacity in (23, 20):
        batch = loaded(tmp_path, replay__capacity=5 * capacity).gather(torch.arange(capacity))
        expected = np.roll(obs, -held["oldest"], 0)[-capacity:]
        np.testing.assert_array_equal(batch.obs.numpy(), expected.swapaxes(0, 1))


def test_what_a_user_wrote_is_what_replay_holds_with_its_priorities(tmp_path: Path) -> None:
    config = tiny_run(**APEX_DQN, algorithm__n_steps=5)
    unrolls = [made_up_unroll(config, number) for number in range(3)]
    write_unrolls(tmp_path / "set", config, unrolls)
    queue = empty(config)
    load_replay(str(tmp_path / "set"), config, CARTPOLE, queue)
    batch = queue.storage.gather(torch.arange(0, 60, 5))
    for name in ("obs", "action"):
        whole = np.concatenate([getattr(unroll, name) for unroll in unrolls], axis=1)
        np.testing.assert_array_equal(getattr(batch, name).numpy(), whole)
    priorities = np.concatenate([unroll.extras[PRIORITY].T.ravel() for unroll in unrolls])
    np.testing.assert_allclose(queue.arrays()["weights"], (priorities + 1e-6) ** 0.6, rtol=1e-6)
    assert_equal_unrolls(unrolls[0], made_up_unroll(config))  # nothing was changed on the way


# ── what does not fit ──


def other_replay(tmp_path: Path, **changes: Any) -> Path:
    folder, config = tmp_path / "set", tiny_run(**changes)
    write_unrolls(folder, config, [made_up_unroll(config)])
    return folder


MISFITS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "environment": (
        {},
        {"environment__id": "Acrobot-v1"},
        "is of another environment: the shape of an observation was",
    ),
    "unroll length": ({}, {"algorithm__unroll_length": 7}, "obs is float32[6, 4], this run needs float32[8, 4]; give"),
    "algorithm": (APEX_DQN, {}, "extras.log_probs is missing, this run needs float32[5, 2]; give one of the same"),
}


@pytest.mark.parametrize(("its", "mine", "message"), MISFITS.values(), ids=MISFITS)
def test_another_layout_is_refused_in_one_line(
    tmp_path: Path, its: dict[str, Any], mine: dict[str, Any], message: str
) -> None:
    folder = other_replay(tmp_path, **its)
    config = tiny_run(tmp_path / "run", replay__load=str(folder), **mine)
    said = config_error(lambda: train(config))
    assert said.startswith(f"replay.load: {folder}/checkpoint/0: ")
    assert message in said


def test_a_folder_without_replay_is_refused(tmp_path: Path, finished_run: Path) -> None:
    def said(folder: Path, **changes: Any) -> str:
        return config_error(lambda: train(tiny_run(tmp_path / "run", replay__load=str(folder), **changes)))

    assert "holds no replay; give a folder of a run with checkpoint.replay" in said(finished_run)
    assert said(tmp_path / "nowhere").startswith(f"replay.load: {tmp_path}/nowhere: holds no whole checkpoint; ")
    folder = other_replay(tmp_path)
    assert "algorithm.replay_ratio 0 keeps no replay; leave it out" in said(folder, algorithm__replay_ratio=0.0)
    several = {"engine": "ray", "learner__count": 2}
    assert "replay.load work with one learner only" in said(folder, **several)


def test_damage_is_seen_before_anything_is_loaded(tmp_path: Path) -> None:
    folder = other_replay(tmp_path)
    path = folder / "checkpoint/0/replay.reward"
    path.write_bytes(b"\1" + path.read_bytes()[1:])
    config = tiny_run()
    queue = empty(config)
    said = config_error(lambda: load_replay(str(folder), config, CARTPOLE, queue))
    assert said == f"replay.load: {path}: damaged; its checksum is not the manifest's"
    assert len(queue.storage) == 0
    checkpoint.write(tmp_path, 0, {"replay": {"fields": 3}}, {})
    said = config_error(lambda: load_replay(str(tmp_path), config, CARTPOLE, queue))
    assert "its replay is not described as this program does it" in said
    state = checkpoint.load(folder / "checkpoint/0").state
    checkpoint.write(tmp_path / "empty", 0, state | {"replay": state["replay"] | {"sequences": 0}}, {})
    said = config_error(lambda: load_replay(str(tmp_path / "empty"), config, CARTPOLE, queue))
    assert "its replay is empty" in said


CONFIG = tiny_run()
NUMBERS = made_up_unroll(CONFIG)
AT_STEP_1 = np.arange(5)[:, None] == [1, 9, 9, 9]  # of environment 0
COUNTED = NUMBERS.episode_step
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "action": ({"action": NUMBERS.action + 1}, "action: 1 to 2, allowed 0 to 1"),
    "mu": (
        {"extras": {"log_probs": NUMBERS.extras["log_probs"] - 0.5}},
        "log_probs: probabilities add up to 1 ± 0.39, allowed ± 0.001",
    ),
    "no array": ({"reward": NUMBERS.reward.tolist()}, "reward: list, allowed is a NumPy array"),
    "no extras": ({"extras": None}, "extras: NoneType, allowed is a dict of NumPy arrays"),
    "no environment": (
        {name: getattr(NUMBERS, name)[:, :0] for name in ARRAY_FIELDS},
        "obs: float32[6, 0, 4], expected float32[6, 1, 4]",
    ),
    "count": ({"episode_step": COUNTED - 1}, "episode_step: -1, allowed is 0 or more"),
    "no reset": (
        {"truncated": AT_STEP_1},
        "truncated: step 1 of environment 0: the step behind it is not masked, as a reset is",
    ),
    "another episode": (
        {"episode_step": np.where(COUNTED > 2, COUNTED - 3, COUNTED), "terminated": np.zeros_like(NUMBERS.mask)},
        "episode_step: step 2 of environment 0: the next observation's is not one more; mask a step that resets",
    ),
}


@pytest.mark.parametrize(("replaced", "message"), WRONG.values(), ids=WRONG)
def test_an_unroll_that_does_not_fit_is_not_written(tmp_path: Path, replaced: dict[str, Any], message: str) -> None:
    unrolls = [made_up_unroll(CONFIG), made_up_unroll(CONFIG, 1, **replaced)]
    assert config_error(lambda: write_unrolls(tmp_path / "set", CONFIG, unrolls)) == f"unrolls[1]: {message}"
    assert not (tmp_path / "set").exists()


def test_what_cannot_be_replay_is_refused_in_one_line(finished_run: Path, tmp_path: Path) -> None:
    def said(unrolls: Any, folder: Path = tmp_path / "set", **changes: Any) -> str:
        return config_error(lambda: write_unrolls(folder, tiny_run(**changes), unrolls))

    assert said(None).startswith("unrolls: NoneType, allowed is an iterable of Unroll")
    assert said([NUMBERS, [1, 2]]).startswith("unrolls[1]: list, allowed is an Unroll")
    assert said([NUMBERS], algorithm__name="ppo").startswith("run: its ppo keeps no replay memory")
    assert "there are no unrolls" in said([])
    assert said([NUMBERS], finished_run) == f"{finished_run}: holds a checkpoint; give a new folder"


def test_an_episode_ends_with_a_reset_or_in_termination(tmp_path: Path) -> None:
    """A lost life terminates and the game goes on; a new episode may follow a terminated step at once; others are reset."""
    terminated, truncated, mask = np.zeros((3, 5, 4), bool)
    count, mask = COUNTED.copy(), ~mask
    terminated[1] = True  # a life
    truncated[2, 2], mask[3, 2], count[4:, 2] = True, False, [0, 1]  # a time limit, and the step that resets
    terminated[2, 3], count[3:, 3] = True, [0, 1, 2]
    truncated[4] = True  # what is behind it is in no unroll
    flags: dict[str, Any] = {"terminated": terminated, "truncated": truncated, "mask": mask}
    write_unrolls(tmp_path / "set", CONFIG, [made_up_unroll(CONFIG, **flags, episode_step=count)])
    assert loaded(tmp_path / "set").num_steps == 19


def test_the_policy_of_actors_is_checked_when_it_is_loaded_except_of_masked_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    masked = made_up_unroll(CONFIG)
    masked.mask[2], masked.extras["log_probs"][2] = False, 0.0
    write_unrolls(tmp_path / "masked", CONFIG, [masked])
    assert loaded(tmp_path / "masked").num_steps == 16
    monkeypatch.setattr("apex_acer.learner.stored_replay._require_usable", lambda *given: None)
    write_unrolls(tmp_path / "set", CONFIG, [made_up_unroll(CONFIG, 0, **WRONG["mu"][0])])
    monkeypatch.undo()
    assert "log_probs: probabilities add up to" in config_error(lambda: loaded(tmp_path / "set"))
